"""A load generator for any server of OpenAI's API, and for the kernel's socket."""

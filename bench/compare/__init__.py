"""Other servers and this one under the same load, in turn."""

"""The socket ABI: system calls as frames on a Unix socket."""

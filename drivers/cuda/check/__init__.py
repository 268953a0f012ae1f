"""What a GPU does and how fast: `make gpu-check`."""

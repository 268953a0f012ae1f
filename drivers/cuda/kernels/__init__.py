"""Kernels of the CUDA driver: their sources, their binaries, and what they are called with."""

"""The CPU device driver: Numba kernels over a paged KV arena."""

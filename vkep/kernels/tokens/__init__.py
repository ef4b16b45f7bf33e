"""Kernels that choose, compare and count tokens."""

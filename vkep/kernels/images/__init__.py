"""Kernels that pool, resize and sample images."""

"""Kernels that copy elements by index or condition: gather, scatter, pad, selection."""

"""Kernels of attention: of many and of few queries, linear attention, and caches of keys and values."""

"""Kernels of matrix products: dense, of block-quantised weights, by groups, fused; their tilings, and cooperative matrices."""

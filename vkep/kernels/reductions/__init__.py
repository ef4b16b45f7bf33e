"""Kernels along one axis of a tensor: reductions, normalisations, running sums, the greatest elements."""

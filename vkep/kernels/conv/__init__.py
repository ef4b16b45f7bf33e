"""Kernels of convolutions: direct, by tiles, with channels last, by Winograd; windows added up, and deformable ones."""

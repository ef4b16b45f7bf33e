"""Quantized regions."""

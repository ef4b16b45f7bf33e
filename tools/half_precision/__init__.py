"""Whole networks in float16 beside torch's, by one command."""

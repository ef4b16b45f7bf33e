"""Checks that passes keep the results of operations, with the interpreter of operations (`tools.passes.interpreter`)."""

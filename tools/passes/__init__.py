"""Checks that passes keep the results of operations, with the interpreter of operations (`vkep.ir.interpreter`)."""

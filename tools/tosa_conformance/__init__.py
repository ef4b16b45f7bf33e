"""TOSA's conformance tests through vkep's VGF path."""

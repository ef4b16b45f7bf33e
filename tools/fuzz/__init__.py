"""Random inputs that break an operator's specification, guard pages around tensors, and campaigns of injected faults."""

"""Which TOSA operators the lowering reaches."""

"""The device side: plans become pipelines, memory and recorded command buffers, and run."""

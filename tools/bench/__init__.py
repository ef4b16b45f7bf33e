"""Measures vkep and its peers side by side: `python -m tools.bench`.

Each peer runs each model in a worker process of its own (a crash or another runtime's threads stay there). The rounds
interleave: in every round each peer runs a few times in turn, so that a machine that slows down slows all of them.
Times are wall clock around one run with numpy arrays in and out.
"""

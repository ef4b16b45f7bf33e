"""Models of many kinds with open sizes: how many plans they make, and what a size that is new costs."""

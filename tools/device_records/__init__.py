"""Plans for devices that nobody here has, checked against what their drivers report."""

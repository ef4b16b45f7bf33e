"""Plans for devices that are not available here, checked against the reports of their drivers."""

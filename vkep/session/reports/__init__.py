"""What a session reports: where nodes run, times, memory, pages."""

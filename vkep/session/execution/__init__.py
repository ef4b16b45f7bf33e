"""A prepared program: its steps on the device, on the CPU and by other delegates."""

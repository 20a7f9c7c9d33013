"""What the operating system says: disks, memory, signals, processes."""

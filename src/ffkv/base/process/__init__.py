"""What a process does beside its work: threads, signals, progress, recovery, disks."""

"""What developers of ffkv start, and no run needs."""

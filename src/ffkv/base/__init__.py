"""What all rooms stand on: settings, files, processes, the hub, statistics. It knows no model."""

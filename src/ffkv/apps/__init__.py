"""What people do with a finished run: the explorer, annotation, machine annotators, exports."""

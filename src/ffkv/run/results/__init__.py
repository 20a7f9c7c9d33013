"""A finished run, read and checked."""

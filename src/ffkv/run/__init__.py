"""A finished run, read: as Python objects, traces, reports, comparisons."""

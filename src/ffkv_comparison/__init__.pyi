"""The public names of ffkv_comparison, in the order of docs/api.md."""

# Not sorted:

from ffkv_comparison.step import compare_runs as compare_runs

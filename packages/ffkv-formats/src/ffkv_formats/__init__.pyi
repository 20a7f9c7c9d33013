"""The public names of ffkv_formats, in the order of docs/api.md."""

# Not sorted:

from ffkv_formats.notebook import circuitsvis as circuitsvis

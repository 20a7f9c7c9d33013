"""Dictionaries in the place of feed-forward layers: transcoders and sparse autoencoders, read as key-value memories.

`forms` is what a file must tell, and the door for those who read files. `layer` is the module that stands in a block. `choose`
measures where a dictionary reads and writes.
"""

"""Linear maps from the space of each layer to that of the last layer, and what values say through them (docs/translation.md).

In the order of the data: `states` reads the states of other text, on which `fit` fits the maps and judges them. `jacobian` sums
derivatives over texts, and `average` makes maps of them, or of a published lens (`lens_file`). `maps` is the file of the maps.
`measure` reads values and states through them. `reading` scores tokens by what keys read. `summarize` makes the tables of figures 4, 5 and 8 to 10 in these readings. `tables`
describes all tables.
"""

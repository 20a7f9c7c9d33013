"""How predictions are refined from layer to layer (paper section 5.2).

`measure` reads the predictions of r, y and o of each layer and classifies how they relate. `summarize` makes figures 9 to 11 and
the table of the prefixes whose prediction the last layer changes. `tables` describes the tables.
"""

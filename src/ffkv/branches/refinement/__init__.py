"""How predictions are refined from layer to layer (paper section 5.2).

`cases` classifies how the predictions of r, y and o relate, `changes` samples the prefixes whose prediction the last
layer changes, `summaries` makes figures 9 to 11. `tables` describes the tables, `step` has the functions on files.
"""

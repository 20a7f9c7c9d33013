"""How predictions are refined from layer to layer (paper section 5.2).

`summaries` classifies how the predictions of r, y and o relate, and makes figures 9 to 11. `changes` samples the prefixes
whose prediction the last layer changes. `tables` describes the tables, `step` has the functions on files.
"""

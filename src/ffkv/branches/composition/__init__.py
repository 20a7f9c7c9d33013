"""How the memories of a layer compose its output (paper section 5.1).

`measure` finds which memories are active on a sampled prefix, how many carry the sum, and whether one of them predicts what
the layer predicts. `summarize` makes figures 7 and 8. `tables` describes the tables.
"""

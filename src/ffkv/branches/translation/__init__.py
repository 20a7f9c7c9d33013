"""Linear maps from the space of each layer to that of the last layer, and what values say through them (docs/translation.md).

`ridge` fits a map in closed form, `descent` lets it go on by the divergence of predictions if that is asked for, `maps` stores maps and makes heads of them, `readings` judges a map and reads values and
states through it, `summaries` makes the tables of figures 4, 5 and 8 to 10 in this reading. `tables` describes the tables,
`step` has the functions on files.
"""

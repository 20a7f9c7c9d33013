"""What each value predicts: agreement with the triggers, rank, top probability (paper section 4).

`project` reads what each value predicts by itself, and compares it with the tokens that follow its key's trigger examples.
`projections` is the file of these predictions. `summarize` makes figures 4 to 6 and table 2. `tables` describes the tables.
"""

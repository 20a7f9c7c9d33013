"""What each value predicts: agreement with the triggers, rank, top probability (paper section 4).

`projections` is what each value predicts by itself, `compare` holds it against the tokens that follow its key's
trigger examples, `summaries` makes figures 4 to 6 and table 2. `tables` describes the tables, `step` has the
functions on files.
"""

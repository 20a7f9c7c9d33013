"""The HTML report of a run.

The page has a `section` per branch: its figures, its words and its tables. Each is the module `section` of the branch.
A figure has tables, a drawing (with `drawing`, written by `svg`), a caption (with `wording`, from templates in `texts.toml` of its
branch), and as a `curve` what another run, such as its control, can draw over it. `registry` lists the figures. To add
one, see CONTRIBUTING.md.

The first screen is an `overview` of the paper's `claims` with their `verdicts`. `section` also puts the sections
together, and opens the control. `facts` says what the run is, `page_tables` has tables, `cards` single memories. `step`
writes the page, and shows it and its figures in a notebook.
"""

"""The HTML report of a run.

The page has a `section` per branch: its figures, its words and its tables. Each is a module: `section_keys`,
`section_values`, `section_composition`, `section_refinement`, `section_intervention`; `section_run` is about the run
itself. A figure has tables, a drawing (with `drawing`, written by `svg`), a caption (with `wording`), and as a `curve` what another run
can draw over it (`control`). `registry` lists the figures. To add one, see CONTRIBUTING.md.

The first screen is an `overview` of the paper's `claims` with their `verdicts`. `sections` puts the sections together.
`facts` says what the run is, `page_tables` has tables, `graph_blocks` graphs of behaviours, `cards` single memories. `step` writes the page with
`templates`; `commands` is `ffkv report`. `notebook` shows figures and the page in a notebook.
"""

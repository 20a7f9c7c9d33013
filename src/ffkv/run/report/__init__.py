"""The HTML report of a run.

A figure is a module: `figure_2` to `figure_11`, `interventions`, `intervention_doses`, `kept_memories`, `training`.
Each makes a `figure`: its tables, its drawing (with `drawing`), its caption (with `wording`), and as a `curve` what
another run can draw over it (`control`). `registry` lists them. To add one, see CONTRIBUTING.md.

The page: `sections` puts the `section` of each branch together (`section_keys`, `section_values`,
`section_composition`, `section_refinement`, `section_intervention`). `facts` says what the run is, `page_tables` has
tables, `cards` has single memories. `step` writes all of it with `templates` and `text`; `commands` is `ffkv report`.
"""

"""The branches of the analysis: keys, values, composition, refinement, translation, intervention, roles,
behaviours, concepts, routing.

They read what the passes stored. None reads another one, except that `composition`, `translation`, `intervention`,
`roles` and `behaviours` read the projections of `values`. `translation` makes figures of three branches once more, with
their functions. A branch describes itself in its `branch`: steps, tables, words of the report; its `settings` has its section.
`given` is what a step gets: its files, opened and checked. `registry` lists the branches, `branch` says what a description
has, `settings` puts all settings of a run together, `commands` makes the commands.
"""

"""The graph of a prediction: the few memories, at the tokens where they act, that keep a share of it, and what is between them.

`of_prompt` has the model choose and measure them (`ffkv.branches.behaviours.graph`, as of a set of prompts). `result` is a graph as
tables, also that of a behaviour, and as text; `drawing` draws it. Forms of other tools stand behind a door.
docs/graphs.md defines every number.
"""

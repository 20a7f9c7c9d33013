"""The graph of a prediction: the few memories, at the tokens where they act, that keep a share of it, and what is between them.

`settings` says what can be asked. `choose` chooses the memories, `links` measures what one does to the others and to the answer. `step`
puts it together as a `result`, `of_behaviour` reads the graph of a behaviour, `drawing` draws both, `exchange` is the JSON of other tools'
viewers, `text` writes each of these, `commands` is `ffkv graph`. docs/graphs.md defines every number.
"""

"""What keys detect: patterns in their trigger examples, token removal, activity (paper section 3).

Patterns (figure 2): `key_sample` draws keys and random prefixes, `features` names what can recur in trigger examples and how often
it does by chance, `topics` finds the topics of the corpus and what random prefixes say of them, `patterns` tests what recurs and
puts the tests together. Token removal (figure 3), and the effect of low precision: `removal`. `summarize` sums up per layer.
`tables` describes the tables.
"""

"""What keys detect: patterns in their trigger examples, token removal, activity (paper section 3).

Patterns (figure 2): `key_sample` draws keys and random prefixes, `features` names what can recur in trigger examples,
`chance` counts it in random prefixes, `topics`, `draws` and `similarity` test whether prefixes have a topic,
`patterns` puts the tests together. Token removal (figure 3): `removal`. The effect of low precision: `precision`.

`tables` describes the tables, `summaries` sums them up per layer, `step` has the functions on files.
"""

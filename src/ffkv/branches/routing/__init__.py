"""Routing: to which experts a model sends the tokens of a corpus, and which of its experts fire on which patterns.

`measure` draws documents, reads which experts each token is sent to, and compares tokens with a pattern (`ffkv.corpus.rules`) with
others. `tables` describes the tables; `section` shows them. docs/definitions.md defines every number.
"""

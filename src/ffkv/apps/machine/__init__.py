"""A language model behind a chat endpoint explains keys, and its explanations are scored (docs/annotation-machine.md).

`material` reads what a run knows of a memory, `texts` chooses the texts: some to explain, others to score.
`questions` writes the questions, `asking` asks them: kept answers first (`ledger`), then the `endpoint`, within a
budget. `answers` reads answers strictly, `scores` computes the scores, `summary` sums them up per layer. `sheet`
judges a sheet as people do. `files` and `tables` are what is left on the disk. `step` and `commands` are `ffkv
annotate machine`.
"""

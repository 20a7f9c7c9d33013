"""A language model behind a chat endpoint explains keys, and its explanations are scored (docs/annotation.md).

`explain` goes through the memories: `material` reads what a run knows of one, `texts` chooses the texts: some to
explain, others to score. `questions` writes the questions, `asking` asks them: kept answers first (`ledger`), then
the `endpoint`, within a budget. `answers` reads answers strictly, `scores` computes the scores and their means per
layer. A sheet is judged instead as people do (`step`). `settings` has the options, `step` and `commands` are `ffkv
annotate machine`.
"""

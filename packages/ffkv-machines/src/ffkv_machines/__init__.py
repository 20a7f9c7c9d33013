"""A language model behind a chat endpoint explains keys, and its explanations are scored (packages/ffkv-machines/README.md).

`explain` goes through the memories, computes the scores and their means per layer, or lets the model judge a sheet as
people do. `texts` reads what a run knows of a memory, and chooses its texts: some to explain, others to score.
`questions` writes the questions and reads the answers strictly. `asking` asks: kept answers first, then the
endpoint, within a budget. `settings` has the options, `commands` is `ffkv annotate machine`.

This is a package of its own because it alone sends texts of a corpus to an endpoint, with a client of its own: who does not install it
cannot send any.
"""

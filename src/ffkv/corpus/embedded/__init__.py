"""The embedded model: a small GPT-2 with ReLU that the workflow trains itself, without a download.

`training` learns byte-level byte-pair encoding from the embedded corpus, and trains the model on isolated sentences.
`tuning` begins with a
model that was trained before, and with a LoRA. `tables` describes `training.csv`. `step` and `commands` are `ffkv train`.
"""

"""The embedded corpus and the embedded model, which need no download: Python's documentation, and a small GPT-2 trained on it.

`python_docs` reads the documentation. `training` trains the model on isolated sentences, or trains a model further that was trained
before, all of it or a LoRA. `commands` is `ffkv train`. `door` says what of this ffkv finds. The model itself and its tokenizer
are `ffkv.model.small`, and the settings are ffkv's: its plan needs them before anything is trained.
"""

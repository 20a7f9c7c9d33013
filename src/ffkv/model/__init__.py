"""Loads a checkpoint; finds, taps and proves its feed-forward layers; reads out residual vectors.

The model step (`step`) goes this way: `checkpoint` loads the model, `placement` decides where its weights lie,
`experts` makes banks of experts keep a record, `discover` finds the feed-forward layers and proves the identities of
`identities`, `head` makes the head a model of its own. `dictionaries` has what stands in the place of a layer that is read through a
dictionary. The result is `anatomy`: how the layers are built.

Later steps read `model/anatomy.json`, and then `values_file` (the values v_i), `keys_and_values` (k_i and v_i of the
model), `tap` (x, m, y, o of a running model), `routing` (experts of tokens), `head` (vectors become logits) and `effects`
(what changes of o do).

`shape` has the sizes of a model before any weight is read, for plans. `small` makes the embedded model and its
tokenizer. `commands` is `ffkv model` and `ffkv inspect`.
"""

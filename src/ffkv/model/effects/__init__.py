"""What a change of a layer's output at one token does to the prediction.

`changes` has the vectors by which memories are removed, scaled or set, and those of controls. `rerun` runs the blocks
after the layer again, `measured` reads out what changed, `reach` both directly and in total, and `controls` compares.
`patched` changes many memories in all layers at once, `running` loads a model for all of these. `gradient` says for all layers at once, by one backward pass, how
much any small change would do; `frozen` holds norms and attention patterns while it does. `edges` says how much of what a memory
reads comes from memories of earlier layers; `reads` finds what a layer reads of the residual stream, `without` runs copies of a prompt
without a memory each.
"""

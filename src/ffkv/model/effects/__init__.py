"""What a change of a layer's output at one token does to the prediction.

`changes` has the vectors by which memories are removed or scaled, chooses controls, and reads out what they change.
`unchanged` says what the model does without them, and keeps keys and values.
`rerun` loads a model for all of these, runs the blocks after the layer again, and changes many memories in all layers at once.
`gradient` says for all layers at once, by one backward pass, how much any small change would do; it holds norms and attention
patterns if asked, and looks whether they are held. `edges` says how much of what a memory reads comes from memories of
earlier layers; `reads` finds what a layer reads of the residual stream, and `writes` what is written into it, and patches that.
"""

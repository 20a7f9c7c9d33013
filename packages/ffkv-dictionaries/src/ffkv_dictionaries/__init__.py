"""Layers read through transcoders and sparse autoencoders, from the files that their own code wrote, without that code.

`choose` measures where they read and write, and puts them there; `layer` is what stands there; the branch `reconstruction` measures what
they leave. `forms` is what a file must tell. `door` has what ffkv finds: one form for each way of writing them. `saelens`, `scopes` and `sets` read them, each as its own code
does. `files` finds them and reads what is said of them, `tensors` reads their tensors after all shapes fit, `folding` folds what
scales or shifts into the matrices. Nothing is written, no pickle is opened, no code of a file is run.
"""

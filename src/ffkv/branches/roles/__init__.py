"""What the weights of a memory alone say of it, by the rules of three papers (docs/roles.md).

`measure` has the step: it measures the memories of a layer, and sums them up. `weights` has what it asks of weights. `tables`
describes the tables.
"""

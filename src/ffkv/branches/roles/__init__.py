"""What the weights of a memory alone say of it, by the rules of three papers (docs/roles.md).

`measure` has the step, and what it asks of weights: it measures the memories of a layer, and sums them up. `tables` describes the tables.
"""

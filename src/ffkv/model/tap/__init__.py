"""Reads x, m, y and o while the model runs, and changes them.

`tap` reads the `quantities` of chosen layers in one forward pass. `assemble` does it where no single module knows
them: several second matrices, experts, a norm after the layer. `hooks` has the hooks, which are always removed.

`change` multiplies coefficients, `resume` begins a forward pass behind a layer.
"""

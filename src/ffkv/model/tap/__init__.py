"""Reads x, m, y and o while the model runs, and changes them.

`tap` reads quantities of chosen layers in one forward pass. `change` multiplies coefficients, changes outputs, and begins a
forward pass behind a layer. `hooks` has the hooks, which are always removed.
"""

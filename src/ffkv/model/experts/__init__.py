"""Mixtures of experts: banks whose experts run one at a time, so that the coefficients of their memories are known.

`layouts` says what ffkv must know of a bank, and has the forms of banks in transformers. `record` runs the experts of a
bank one at a time and keeps what they did in its last call. To add a form, add a class to `layouts`.
"""

"""Mixtures of experts: banks whose experts run one at a time, so that the coefficients of their memories are known."""

"""Mixtures of experts: banks that tell the coefficients of their memories."""

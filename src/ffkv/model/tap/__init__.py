"""Reads x, m, y and o while the model runs."""

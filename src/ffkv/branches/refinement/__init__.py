"""How predictions are refined from layer to layer (paper section 5.2)."""

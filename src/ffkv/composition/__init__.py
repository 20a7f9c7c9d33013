"""How the memories of a layer compose (paper section 5.1)."""

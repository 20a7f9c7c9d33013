"""How the memories of a layer compose its output (paper section 5.1)."""

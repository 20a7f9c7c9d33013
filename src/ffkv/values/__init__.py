"""What values predict: agreement, rank, top probability (paper section 4)."""

"""What each value predicts: agreement with the triggers, rank, top probability (paper section 4)."""

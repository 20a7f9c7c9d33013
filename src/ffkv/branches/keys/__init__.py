"""What keys detect: patterns in their trigger examples, token removal, activity (paper section 3)."""

"""What people and machines say about keys: blind sheets, records, agreement."""

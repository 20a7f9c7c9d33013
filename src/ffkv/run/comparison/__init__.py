"""Several finished runs over each other: their curves, their differences, and the same memory in each of them."""

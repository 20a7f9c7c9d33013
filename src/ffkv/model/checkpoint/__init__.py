"""A checkpoint becomes a model and a tokenizer, each with a hash."""

"""Documents to sentences to token ids, with the text that each token stands for."""

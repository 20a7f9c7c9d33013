"""One prompt through the model of a finished run: predictions by layer, contributions of memories, memories switched off."""

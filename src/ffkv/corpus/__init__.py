"""The text: documents, their sentences, the sentences' token ids, and the text of each token."""

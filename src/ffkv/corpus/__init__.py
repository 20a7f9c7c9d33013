"""The text: documents, their sentences, the sentences' token ids, and the text of each token.

Reading: `sources` reads the documents (`document`) of a split, from text files, files with rows (`rows`, which also chooses
rows), dumps of a wiki (`wiki_markup`; `raw_file` opens all three), the hub (`hub_rows`), or what a package brings by the door
`ffkv.corpora`, such as Python's own documentation. `chat` turns chats into text, for the corpus and for prompts.

Encoding: `sentences`, then `encode`, into rows of integers. `shared_prefixes` finds what sentences begin with in
common. `step` finds what stands in front of every sentence, encodes a split, and copies a part of it for a control;
`commands` are `ffkv corpus` and `ffkv copy-corpus`.

The corpus as data: `corpus_file` is `corpus/<split>.h5`, `competing` says which prefixes compete for a key, `words`
finds words, `rules` label tokens by their text.
"""

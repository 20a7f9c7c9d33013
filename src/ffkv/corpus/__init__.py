"""The text: documents, their sentences, the sentences' token ids, and the text of each token.

Reading: `sources` reads the documents (`document`) of a split, from text files (`text_files`), files with rows
(`row_files`), dumps of a wiki (`wiki_dump`, whose text `wiki_markup` finds; `raw_file` opens all three), the hub
(`hub_rows`) or Python's own documentation (`python_docs`). `where` chooses rows, `chat` turns chats into text.

Encoding: `detokenize`, then `sentences`, then `encode`, into `rows` of integers. `beginning` finds what stands in
front of every sentence. `shared_prefixes` finds what sentences begin with in common. `step` and `commands` are `ffkv
corpus`. `part` copies a part of a corpus for a control.

The corpus as data: `corpus_file` is `corpus/<split>.h5`, `competing` says which prefixes compete for a key, `words`
finds words. The room `embedded` trains a small model on Python's documentation.
"""

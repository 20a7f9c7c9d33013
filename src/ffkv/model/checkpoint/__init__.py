"""A checkpoint becomes a model and a tokenizer, each with a hash.

`read` loads the model of a new checkpoint, of whatever form its weights are (`forms`): `config` says how it is built,
`checks` says in words what is wrong with it, `failures` translates what a library raised. `leftovers` sorts out what
the files hold (`weight_files`) and the model does not use. `gguf_file` reads a file in the GGUF form once, and `unpack`
writes it as a checkpoint that later jobs read. `adapter` merges an adapter. `tokenizer` loads the tokenizer, `vocabulary` stores the text of every token id.

`fingerprint` hashes model and tokenizer, the weights once per machine. `load` loads a proven model again and compares
its hash.
"""

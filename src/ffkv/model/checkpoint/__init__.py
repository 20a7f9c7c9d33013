"""A checkpoint becomes a model and a tokenizer, each with a hash.

`load` loads the model of a new checkpoint, a proven model again, and a GGUF file, which it unpacks once for later jobs.
`config` says how a model is built, `checks` says in words what is wrong with a checkpoint, and which forms of weights can be
read. `weights` compares the model with the files of its weights, and hashes it once per machine. `gguf_file` reads a file in
the GGUF form once, compares its entries with the model, and makes the tokenizer follow it. `adapter` merges an adapter, and
compares the model before and after. `tokenizer` loads the tokenizer, whose parts are those of tokenizer.json or of a GGUF
file. `vocabulary` stores the text of every token id. `readers` are packages beside the core that read other forms of
checkpoints.
"""

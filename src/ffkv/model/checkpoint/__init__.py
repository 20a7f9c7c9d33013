"""A checkpoint becomes a model and a tokenizer, each with a hash.

`load` loads the model of a new checkpoint, and a proven model again, also from the folder that a GGUF file was unpacked into.
`config` says how a model is built, `checks` says in words what is wrong with a checkpoint, and which forms of weights can be
read. `weights` compares the model with the files of its weights, and hashes it once per machine. `adapter` merges an adapter, and
compares the model before and after. `tokenizer` loads the tokenizer, whose parts are those of tokenizer.json or of a GGUF
file. `vocabulary` stores the text of every token id. `readers` are packages beside the core that read other forms of
checkpoints, ffkv-gguf among them.
"""

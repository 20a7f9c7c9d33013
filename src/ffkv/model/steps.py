"""The steps of the wing `model`."""

from ffkv.base.steps import Step

# What the weights in a GGUF file become, by the step `unpack` of the package ffkv-gguf.
UNPACKED = ("revision", "adapter", "adapter_revision", "gguf", "dtype", "trust_remote_code")
SETTINGS = (*UNPACKED, "weights", "weights_seed", "second_matrix", "max_memory")
MODEL = Step("ffkv.model.step:prove", settings=(*(f"model/{name}" for name in SETTINGS), "dictionary"), imports="model")
STEPS = {"model": MODEL}

"""The steps of the wing `model`."""

from ffkv.base.steps import Step

# What the weights in a GGUF file become.
UNPACKED = ("revision", "adapter", "adapter_revision", "gguf", "dtype", "trust_remote_code")
SETTINGS = (*UNPACKED, "weights", "weights_seed", "second_matrix", "max_memory")
UNPACK = Step(
    "ffkv.model.checkpoint.load:unpack", settings=tuple(f"model/{name}" for name in UNPACKED), imports="model"
)
MODEL = Step("ffkv.model.step:prove", settings=(*(f"model/{name}" for name in SETTINGS), "dictionary"), imports="model")
STEPS = {"unpack": UNPACK, "model": MODEL}

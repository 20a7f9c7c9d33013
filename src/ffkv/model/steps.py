"""The steps of the wing `model`."""

from ffkv.base.steps import Step

SETTINGS = (
    "revision",
    "adapter",
    "adapter_revision",
    "gguf",
    "weights",
    "weights_seed",
    "dtype",
    "second_matrix",
    "trust_remote_code",
    "max_memory",
)
# What the weights in a GGUF file become.
UNPACKED = ("revision", "adapter", "adapter_revision", "gguf", "dtype", "trust_remote_code")
UNPACK = Step(
    "ffkv.model.checkpoint.unpack:unpack", settings=tuple(f"model/{name}" for name in UNPACKED), imports="model"
)
MODEL = Step("ffkv.model.step:prove", settings=tuple(f"model/{name}" for name in SETTINGS), imports="model")
STEPS = {"unpack": UNPACK, "model": MODEL}

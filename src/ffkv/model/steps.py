"""The step of the wing `model`."""

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
MODEL = Step("ffkv.model.step:prove", settings=tuple(f"model/{name}" for name in SETTINGS), imports="model")
STEPS = {"model": MODEL}

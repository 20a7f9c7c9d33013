"""What the package adds to ffkv beside its reader of files, see `ffkv.base.doors`: the step `unpack`, and its command."""

from ffkv.base.doors import Command
from ffkv.base.steps import Rules, Step
from ffkv.model.steps import UNPACKED

UNPACK = Command(
    "Steps, which snakemake starts",
    "ffkv_gguf.commands:unpack",
    "Unpack a GGUF file once for all later steps.",
    first=True,
)
RULES = Rules(
    unpack=Step("ffkv_gguf.unpack:unpack", settings=tuple(f"model/{name}" for name in UNPACKED), imports="model")
)

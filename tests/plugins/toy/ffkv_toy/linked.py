"""A reader: a folder whose file `link.txt` names a checkpoint of transformers beside it."""

from pathlib import Path
from typing import Any

from ffkv.model.checkpoint.readers import Reader


def inside(folder: Path) -> Path:
    """The checkpoint that a folder names."""
    return folder.parent / (folder / "link.txt").read_text().strip()


def load_model(settings: Any, with_weights: bool = True) -> Any:
    """Loads the model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = inside(Path(settings.checkpoint))
    if with_weights:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)


def load_tokenizer(folder: Path) -> Any:
    """Loads the tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(inside(folder))


READER = Reader("link.txt (toy)", lambda folder: (folder / "link.txt").is_file(), load_model, load_tokenizer)

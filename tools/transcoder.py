"""Collects what a transcoder learns from: what a layer of a model reads and writes at the tokens of the text of its run.

    python -m tools.transcoder results/memories --layer 12 --output build/transcoder/pairs.safetensors

`make dictionary` calls it, and then `tools/train_transcoder.py` in an environment with sae-lens.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file

from ffkv.base.settings import Corpus
from ffkv.corpus.sources import read_documents
from ffkv.model.checkpoint.load import load
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.tap.tap import tap

TEXT = "package:gensim/test/test_data/enwiki-latest-pages-articles1.xml-p*.bz2"  # as in configs/dictionary.yaml
LENGTH, BATCH = 128, 32  # tokens of a row, and rows of a pass


def main() -> None:
    """Writes x and y of the layer, float16 [token, d], into one file of tensors. The first token of a row is left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--layer", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    loaded, tokenizer = load(given.run / "model"), load_tokenizer(given.run / "model")
    ids: list[int] = []
    for document in read_documents(Corpus(dataset="files", train=[TEXT]), "train"):
        ids += tokenizer(document.text, add_special_tokens=False)["input_ids"]
    rows = torch.tensor(ids[: min(given.tokens, len(ids)) // LENGTH * LENGTH]).reshape(-1, LENGTH)
    found: dict[str, list[torch.Tensor]] = {"x": [], "y": []}

    def keep(layer: object, quantity: str, states: torch.Tensor) -> None:
        found[str(quantity)].append(states[:, 1:].flatten(0, 1).half())

    with tap(loaded.model, loaded.anatomy.layers[given.layer : given.layer + 1], "xy") as run:
        for batch in rows.split(BATCH):
            run(batch.to(loaded.device), keep)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: torch.cat(states) for name, states in found.items()}, given.output)
    print(f"{len(rows) * (LENGTH - 1):,} tokens of layer {given.layer}: {given.output}")


if __name__ == "__main__":
    main()

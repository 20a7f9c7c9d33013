"""Folders in which a command finds what people bring: texts, models, what is left of a killed run."""

import bz2
import gzip
import json
import shutil
import socket
from pathlib import Path

import pandas as pd
import torch
import zstandard
from model.gguf_files import tiny_llama, write_gguf
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

LINES = "\n".join(f"Text {number} says what people do." for number in range(30))
DUMP = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" xml:lang="en"><page><title>A</title><ns>0</ns><id>1</id>'
    f"<revision><id>2</id><text>{'This is an article about something. ' * 9}</text></revision></page></mediawiki>"
)


def write(place: Path, contents: dict[str, bytes]) -> None:
    """Writes files, by their paths in a folder."""
    for name, content in contents.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)


def leave_a_killed_run(place: Path) -> None:
    """Two unfinished outputs, a whole one, and the lock of a Snakemake that is no more."""
    owner = {"host": socket.gethostname(), "pid": 999_999_999, "local": True}
    names = ("triggers/.0.h5.node1.4711.partial", ".model.node1.4712.partial/anatomy.json", "values.h5")
    write(place, {f"results/tiny/{name}": b"text" for name in names})
    write(place, {".snakemake/locks/0.input.lock": b"text", ".snakemake/ffkv_owner.json": json.dumps(owner).encode()})


def write_texts(place: Path, model: Path) -> None:
    """A text of each kind, in folders in each other and behind a link, beside a model/ that reads them."""
    shutil.copytree(model, place / "model")
    rows = pd.DataFrame({"text": LINES.replace("do", "see").splitlines()})
    contents = {
        "texts/one/a.txt": LINES.encode(),
        "texts/one/b.txt.gz": gzip.compress(LINES.replace("do", "say").encode()),
        "texts/two/c.jsonl.zst": zstandard.compress(rows.to_json(orient="records", lines=True).encode()),
        "texts/two/d.csv": rows.replace("see", "mean", regex=True).to_csv().encode(),
        "texts/two/deep/e.parquet": rows.replace("see", "eat", regex=True).to_parquet(),
        "texts/two/deep/f.xml.bz2": bz2.compress(DUMP.encode()),
        "elsewhere/g.txt": LINES.replace("do", "hear").encode(),
    }
    write(place, contents)
    (place / "texts/three").symlink_to("../elsewhere")


def write_adapter(place: Path, base: Path) -> None:
    """A model in several files, and an adapter of it."""
    shutil.copytree(base, place / "base")
    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["up_proj"], init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(place / "adapter")


def write_gguf_file(place: Path) -> None:
    """A quantised model in one file."""
    (place / "files").mkdir(parents=True)
    write_gguf(place / "files/tiny.gguf", *tiny_llama(), "Q8_0")

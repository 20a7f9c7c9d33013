"""Random models of a shape and random sentences of WikiText's lengths, made once and kept in a scratch folder."""

import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from ffkv.corpus.corpus_file import write_corpus
from ffkv.corpus.encode import Encoded
from ffkv.model.anatomy import read_anatomy
from ffkv.model.step import prove
from ffkv.settings import Model

# Of the sentences of WikiText: median and mean length in tokens of a byte-level BPE; lengths are close to log-normal.
MEDIAN, MEAN, LONGEST = 21, 25.6, 128
WARM = 64  # sentences that a pass gets warm with


class Shape(NamedTuple):
    """Form of a random GPT-2: layers L, width d, memories a layer d_m, vocabulary V."""

    layers: int
    width: int
    memories: int
    vocabulary: int

    def __str__(self) -> str:
        """As tables show it."""
        return f"L={self.layers} d={self.width} d_m={self.memories} V={self.vocabulary}"


GPT2 = Shape(12, 768, 3072, 50257)
SMALL = Shape(6, 256, 1024, 8192)


def lengths(sentences: int, seed: int = 0) -> np.ndarray:
    """Tokens of each sentence [sentence], drawn like WikiText's."""
    sigma = np.sqrt(2 * np.log(MEAN / MEDIAN))
    drawn = np.random.default_rng(seed).lognormal(np.log(MEDIAN), sigma, sentences)
    return np.clip(np.round(drawn), 2, LONGEST).astype(np.int64)


def sentences_of(count: int, vocabulary: int, seed: int = 0, length: int | None = None) -> list[np.ndarray]:
    """Random ids of sentences [sentence][token], of WikiText's lengths, or all of one length."""
    sizes = np.full(count, length) if length else lengths(count, seed)
    ids = np.random.default_rng(seed + 1).integers(1, vocabulary, int(sizes.sum()), dtype=np.int32)
    return np.split(ids, np.cumsum(sizes)[:-1])


def model_folder(scratch: Path, shape: Shape) -> Path:
    """The model stage's folder of a random GPT-2, memories.h5 beside it; the checkpoint stands beside both."""
    place = scratch / "models" / "-".join(map(str, shape))
    if not place.exists():
        checkpoint = place / "checkpoint"
        _random_gpt2(shape).save_pretrained(checkpoint)
        _word_tokenizer(shape.vocabulary).save_pretrained(checkpoint)
        proven = prove(Model(checkpoint=str(checkpoint), device="cpu"))
        (place / "model").mkdir()
        proven.write(place / "model", place / "values.h5")
    return place / "model"


def corpus_file(scratch: Path, model: Path, count: int, length: int | None = None) -> Path:
    """`corpus/<split>.h5` of so many random sentences, for a model of `model_folder`; `length`: see `sentences_of`."""
    anatomy = read_anatomy(model)
    path = scratch / "corpora" / (f"{anatomy.vocabulary}-{count}" + (f"-{length}" if length else "") + ".h5")
    if not path.exists():
        ids = sentences_of(count, anatomy.vocabulary, length=length)
        path.parent.mkdir(parents=True, exist_ok=True)
        encoded = Encoded(
            ids=ids,
            ends=[np.arange(1, len(sentence) + 1, dtype=np.int32) for sentence in ids],
            text=["x" * len(sentence) for sentence in ids],
            document=list(range(count)),
            multiplicity=[1] * count,
            names=[str(number) for number in range(count)],
            counts={},
        )
        write_corpus(path, encoded, [0], anatomy.vocabulary, True, {"tokenizer_hash": anatomy.tokenizer_hash})
    return path


def _random_gpt2(shape: Shape) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=shape.layers,
        n_embd=shape.width,
        n_inner=shape.memories,
        n_head=max(1, shape.width // 64),
        vocab_size=shape.vocabulary,
        n_positions=256,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).eval()


def _word_tokenizer(words: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="w0")


def main(scratch: str, wanted: str) -> None:
    """Makes the inputs of arms, from their arguments."""
    for arguments in json.loads(wanted):
        folder = model_folder(Path(scratch), Shape(*arguments["shape"]))
        for count in (WARM, arguments.get("sentences", WARM)):
            corpus_file(Path(scratch), folder, count, arguments.get("length"))


if __name__ == "__main__":
    main(*sys.argv[1:])

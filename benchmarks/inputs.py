"""Random models of a shape and random sentences of WikiText's lengths, made once and kept in a scratch folder."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.measure import Work
from ffkv.base.batching import pad
from ffkv.base.process.runtime import configure, torch_with
from ffkv.base.settings import Model
from ffkv.corpus.corpus_file import Corpus, read_corpus, write_corpus
from ffkv.corpus.encode import Encoded, Rows
from ffkv.model.anatomy import read_anatomy
from ffkv.model.step import prove

# Lengths of WikiText's sentences, in tokens of a byte-level BPE: median and mean. The lengths are close to log-normal.
MEDIAN, MEAN, LONGEST = 21, 25.6, 128
WARM = 64  # sentences of the pass that a contender warms up with


class Shape(NamedTuple):
    """Shape of a random GPT-2.

    Attributes:
        layers: number of layers, L.
        width: dimensions of the residual stream, d.
        memories: number of memories per layer, d_m.
        vocabulary: number of token ids, V.
    """

    layers: int
    width: int
    memories: int
    vocabulary: int

    def __str__(self) -> str:
        """The shape as the table shows it."""
        return f"L={self.layers} d={self.width} d_m={self.memories} V={self.vocabulary}"


class Llama(NamedTuple):
    """Shape of a random Llama: layers, dimensions, memories per layer, heads, those of keys and values, token ids."""

    layers: int
    width: int
    memories: int
    heads: int
    key_heads: int
    vocabulary: int

    @property
    def block_weights(self) -> int:
        """Number of weights with which the blocks multiply each token."""
        keys = self.width * self.width // self.heads * self.key_heads
        return self.layers * (2 * self.width**2 + 2 * keys + 3 * self.width * self.memories)


SMOLLM2 = Llama(30, 576, 1536, 9, 3, 49_152)
LLAMA_8B = Llama(32, 4096, 14_336, 32, 8, 128_256)
GPT2 = Shape(12, 768, 3072, 50257)
SMALL = Shape(6, 256, 1024, 8192)


def draw_lengths(sentences: int, seed: int = 0) -> np.ndarray:
    """Draws the number of tokens of each sentence, as in WikiText [sentence]."""
    sigma = np.sqrt(2 * np.log(MEAN / MEDIAN))
    lengths = np.random.default_rng(seed).lognormal(np.log(MEDIAN), sigma, sentences)
    return np.clip(np.round(lengths), 2, LONGEST).astype(np.int64)


def draw_sentences(count: int, vocabulary: int, length: int | None = None) -> list[np.ndarray]:
    """Draws random token ids of sentences [sentence][token]: of WikiText's lengths, or all of one length."""
    lengths = np.full(count, length) if length else draw_lengths(count)
    ids = np.random.default_rng(1).integers(1, vocabulary, int(lengths.sum()), dtype=np.int32)
    return np.split(ids, np.cumsum(lengths)[:-1])


def make_model(scratch: Path, shape: Sequence[int]) -> Path:
    """The model folder of a random GPT-2, made if it is not there. Its checkpoint is in the folder beside it."""
    folder = scratch / "models" / "-".join(map(str, shape))
    if not folder.exists():
        checkpoint = folder / "checkpoint"
        _random_gpt2(Shape(*shape)).save_pretrained(checkpoint)
        word_tokenizer(Shape(*shape).vocabulary).save_pretrained(checkpoint)
        (folder / "model").mkdir()
        prove(Model(checkpoint=str(checkpoint), device="cpu")).write(folder / "model")
    return folder / "model"


def make_llama(scratch: Path, shape: Sequence[int], dtype: str) -> Path:
    """The model folder of a random Llama, made if it is not there. Its checkpoint is in the folder beside it."""
    its, folder = Llama(*shape), scratch / "models" / f"{'-'.join(map(str, shape))}-{dtype}"
    if not (folder / "model").exists():
        torch.manual_seed(0)
        names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
        config = LlamaConfig(
            **dict(zip(names, its)),
            vocab_size=its.vocabulary,
            bos_token_id=0,
            eos_token_id=0,
            tie_word_embeddings=False,
        )
        LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder / "checkpoint")
        word_tokenizer(its.vocabulary).save_pretrained(folder / "checkpoint")
        proven = prove(Model(checkpoint=str(folder / "checkpoint"), dtype=dtype))
        (folder / "model").mkdir()
        proven.write(folder / "model")
    return folder / "model"


def prepare_model(scratch: Path, shape: Sequence[int]) -> Path:
    """Configures this process as ffkv's commands do, with one thread; returns the folder of `make_model`."""
    configure(1)
    torch_with(1)
    return make_model(scratch, shape)


def make_corpora(scratch: Path, model: Path, sentences: int = WARM, length: int | None = None) -> tuple[Corpus, Corpus]:
    """A corpus of `sentences` random sentences, and a small one to warm up with, made if they are not there.

    All sentences have `length` tokens, or WikiText's lengths if it is None.
    """
    anatomy = read_anatomy(model)
    corpora = []
    for count in (sentences, WARM):
        path = scratch / "corpora" / f"{anatomy.vocabulary}-{count}-{length}.h5"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            ids = draw_sentences(count, anatomy.vocabulary, length)
            encoded = Encoded(
                ids=Rows(ids),
                ends=Rows(np.arange(1, len(sentence) + 1, dtype=np.int32) for sentence in ids),
                text=["x" * len(sentence) for sentence in ids],
                document=list(range(count)),
                multiplicity=[1] * count,
                names=[str(number) for number in range(count)],
            )
            write_corpus(path, encoded, [0], True, {"tokenizer_hash": anatomy.tokenizer_hash})
        corpora.append(read_corpus(path))
    return corpora[0], corpora[1]


def ids_of(corpus: Corpus, sentences: Iterable[int]) -> torch.Tensor:
    """The ids that a model reads of some sentences: with BOS, without the last token, padded [sentence, token]."""
    return pad([np.concatenate([corpus.bos, corpus.ids(sentence)[:-1]]) for sentence in sentences])


def _random_gpt2(shape: Shape) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    settings: dict[str, Any] = dict(zip(("n_layer", "n_embd", "n_inner", "vocab_size"), shape))
    settings |= {"n_head": max(1, shape.width // 64), "n_positions": 256, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**settings)).eval()


def word_tokenizer(words: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="w0")


def make_all(scratch: Path, contenders: list[dict[str, Any]]) -> Work:
    """The work of making the inputs of contenders, from their arguments."""

    def work() -> None:
        for arguments in contenders:
            if "shape" in arguments:
                model = make_model(scratch, arguments["shape"])
                make_corpora(scratch, model, arguments.get("sentences", WARM), arguments.get("length"))

    return work

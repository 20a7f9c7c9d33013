"""Trains the embedded model: a small GPT-2 with ReLU, on isolated sentences with BOS in front.

Sentences stand alone because ffkv reads them alone: what the model has seen in training is what the workflow shows it.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from ffkv.corpus.document import Document
from ffkv.corpus.encode import encode, flatten
from ffkv.corpus.sources import read_documents
from ffkv.embedded.tokenizer import BOS_ID, train_tokenizer
from ffkv.errors import UserError
from ffkv.files import tables
from ffkv.files.atomic import atomic
from ffkv.settings import Corpus, Embedded

PADDING = -100  # what `cross_entropy` ignores
MEASURED = 10  # how often the loss is written down
SAMPLE_TOKENS = 8192  # validation tokens that it is measured on before the end
WARM_UP = 0.05  # share of the steps in which the learning rate rises
FINAL = 0.05  # share of the peak learning rate that is left at the end
BETAS = (0.9, 0.95)  # of AdamW; averages shorter than its default, for a training of few steps
WEIGHT_DECAY = 0.1
LARGEST_NORM = 1.0  # of the gradient

Sentences = list[np.ndarray]  # token ids of each sentence [token], BOS not among them


@dataclass(frozen=True)
class Trained:
    """What training gives.

    curve: the columns of `training.csv`.
    summary: the entries of `training.json`.
    """

    model: GPT2LMHeadModel
    tokenizer: PreTrainedTokenizerFast
    curve: pd.DataFrame
    summary: dict[str, float]


def train(settings: Embedded, corpus: Corpus, seed: int, advance: Callable[[int], None]) -> Trained:
    """Learns the vocabulary and the model from the train split, and measures both splits.

    The same settings, seed and number of threads give the same weights to the bit.

    Args:
        settings: sizes, steps and learning rate.
        corpus: of the embedded corpus, `limit` and `validation_share` count.
        advance: told the number of tokens of every step.
    Raises:
        UserError: a split without sentences.
    """
    documents = {split: list(read_documents(corpus, split)) for split in ("train", "validation")}
    paragraphs = (paragraph for document in documents["train"] for paragraph in document.text.splitlines())
    tokenizer = train_tokenizer(paragraphs, settings.vocabulary, settings.context)
    sentences = {split: _sentences(found, tokenizer, settings.context - 1) for split, found in documents.items()}
    tokens = {split: flatten(found) for split, found in sentences.items()}
    if empty := [split for split, found in tokens.items() if not len(found)]:
        raise UserError(
            f"The {empty[0]} split of the embedded corpus has no sentences: raise corpus.limit or set it to 0."
        )
    model = make_model(settings, len(tokenizer), seed)
    curve = pd.DataFrame(fit(model, sentences["train"], sentences["validation"], settings, seed, advance))
    summary = {
        "unigram_perplexity": unigram_perplexity(tokens["train"], tokens["validation"], len(tokenizer)),
        "validation_perplexity": float(curve["perplexity"].iloc[-1]),
        "parameters": model.num_parameters(),
        "train_tokens": len(tokens["train"]),
        "validation_tokens": len(tokens["validation"]),
        "steps": settings.steps,
        "seed": seed,
    }
    return Trained(model, tokenizer, curve, summary)


def _sentences(documents: list[Document], tokenizer: PreTrainedTokenizerFast, longest: int) -> Sentences:
    return encode(
        documents, tokenizer, longest, "sentence", pretokenized=False, long_sentences="windows", deduplicate=True
    ).ids


def make_model(settings: Embedded, vocabulary: int, seed: int) -> GPT2LMHeadModel:
    """A GPT-2 with ReLU and random weights. ReLU, because the paper's model has it: a memory is active or it is not."""
    torch.manual_seed(seed)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary,
            n_positions=settings.context,
            n_embd=settings.width,
            n_layer=settings.layers,
            n_head=settings.heads,
            activation_function="relu",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=BOS_ID,
            eos_token_id=BOS_ID,
        )
    )


def fit(
    model: GPT2LMHeadModel,
    train: Sentences,
    validation: Sentences,
    settings: Embedded,
    seed: int,
    advance: Callable[[int], None],
) -> Iterator[dict]:
    """Trains the model in place, and yields the rows of `training.csv`: two, one a split, at every tenth of the steps.

    The train loss is the mean of the steps since the row before. The validation loss is of a fixed sample, at the last
    step of the whole split.
    """
    random = np.random.default_rng(seed)
    sample = _sample(validation, random)
    optimizer = torch.optim.AdamW(model.parameters(), betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)
    measured = {math.ceil(settings.steps * part / MEASURED) for part in range(1, MEASURED + 1)}
    tokens, losses = 0, []
    for step, ids in zip(range(1, settings.steps + 1), batches(train, settings.batch_tokens, random)):
        optimizer.param_groups[0]["lr"] = settings.learning_rate * schedule(step, settings.steps)
        losses.append(_descend(model, optimizer, ids))
        advance(size := int((ids != PADDING).sum()))
        tokens += size
        if step in measured:
            yield _row(step, tokens, "train", sum(losses) / len(losses))
            held_out = validation if step == settings.steps else sample
            yield _row(step, tokens, "validation", evaluate(model, held_out, settings.batch_tokens))
            losses = []


def _descend(model: GPT2LMHeadModel, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> float:
    with torch.enable_grad():
        loss = loss_of(model, ids)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def _row(step: int, tokens: int, split: str, loss: float) -> dict:
    return {"step": step, "tokens": tokens, "split": split, "loss": loss, "perplexity": math.exp(loss)}


def schedule(step: int, steps: int) -> float:
    """Share of the peak learning rate at a step, from 1 to `steps`: a linear warm-up, then half a cosine."""
    warm_up = math.ceil(WARM_UP * steps)
    if step <= warm_up:
        return step / warm_up
    return FINAL + (1 - FINAL) * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up))) / 2


def batches(sentences: Sentences, batch_tokens: int, random: np.random.Generator) -> Iterator[torch.Tensor]:
    """Batches without end, epoch after epoch: token ids [sentence, token], padded on the right with `PADDING`.

    A batch holds sentences of about one length, so that little is padding; which ones meet, and in which order the
    batches come, is random.
    """
    lengths = np.array([len(ids) for ids in sentences])
    while True:
        order = random.permutation(len(sentences))
        order = order[np.argsort(lengths[order], kind="stable")]
        cuts = cut(lengths[order], batch_tokens)
        for index in random.permutation(len(cuts)):
            yield pad([sentences[number] for number in order[cuts[index]]])


def cut(lengths: np.ndarray, batch_tokens: int) -> list[slice]:
    """Cuts rising lengths into batches of at most `batch_tokens` tokens (padding included), or of one sentence."""
    cuts, start = [], 0
    for stop in range(1, len(lengths) + 1):
        if stop == len(lengths) or (stop + 1 - start) * lengths[stop] > batch_tokens:
            cuts.append(slice(start, stop))
            start = stop
    return cuts


def pad(sentences: Sentences) -> torch.Tensor:
    """Sentences as one tensor [sentence, token], filled up on the right with `PADDING`."""
    padded = np.full((len(sentences), max(map(len, sentences))), PADDING, np.int64)
    for row, ids in zip(padded, sentences):
        row[: len(ids)] = ids
    return torch.from_numpy(padded)


def loss_of(model: GPT2LMHeadModel, ids: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Cross-entropy in nats of every token of `ids` [sentence, token] after BOS and the tokens before it.

    Padding stands on the right, where causal attention cannot see it; the head only works on real tokens.
    """
    inputs = torch.nn.functional.pad(ids[:, :-1].clamp(min=0), (1, 0), value=BOS_ID)
    hidden = model.transformer(inputs, use_cache=False).last_hidden_state
    real = ids != PADDING
    return cross_entropy(model.lm_head(hidden[real]), ids[real], reduction=reduction)


@torch.no_grad()
def evaluate(model: GPT2LMHeadModel, sentences: Sentences, batch_tokens: int) -> float:
    """Mean cross-entropy a token, in nats."""
    ordered = sorted(sentences, key=len)
    cuts = cut(np.array([len(ids) for ids in ordered]), batch_tokens)
    return sum(loss_of(model, pad(ordered[part]), "sum").item() for part in cuts) / sum(map(len, ordered))


def unigram_perplexity(train: np.ndarray, validation: np.ndarray, vocabulary: int) -> float:
    """Perplexity of `validation` [token] under the frequencies of `train` [token], each count raised by one."""
    counts = np.bincount(train, minlength=vocabulary) + 1
    return float(np.exp(-np.log(counts / counts.sum())[validation].mean()))


def _sample(sentences: Sentences, random: np.random.Generator) -> Sentences:
    """Random sentences of about `SAMPLE_TOKENS` tokens together."""
    shuffled = [sentences[number] for number in random.permutation(len(sentences))]
    before = np.cumsum([0] + [len(ids) for ids in shuffled[:-1]])
    return [ids for ids, tokens in zip(shuffled, before) if tokens < SAMPLE_TOKENS]


def save(trained: Trained, folder: Path) -> None:
    """Writes an ordinary checkpoint folder, with `training.csv` and `training.json` beside the weights.

    Raises:
        UserError: see `files.atomic`.
    """
    with atomic(folder) as temporary:
        trained.model.save_pretrained(temporary)
        trained.tokenizer.save_pretrained(temporary)
        tables.write(trained.curve, temporary / "training.csv")
        (temporary / "training.json").write_text(json.dumps(trained.summary, indent=2) + "\n")

"""Trains the embedded model: a small GPT-2 with ReLU, on isolated sentences with BOS in front.

Or trains it further, all weights or a LoRA.

The sentences are isolated because ffkv also gives each sentence a context of its own. So the workflow shows the model
the same kind of text as the training does.
"""

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from ffkv.base.batching import batches, pad
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.files.atomic import atomic
from ffkv.base.lookup import is_file, looks_told, save_pretrained
from ffkv.base.process.progress import progress
from ffkv.base.settings import Corpus, Embedded
from ffkv.corpus.document import Document
from ffkv.corpus.encode import encode
from ffkv.corpus.sources import read_documents
from ffkv.model.small import BOS_ID, make_model, train_tokenizer

STEPS = "steps"  # folder of the checkpoints that `embedded.keep_steps` asks for, a folder per step
BLOCK_MATRICES = ["c_attn", "c_proj", "c_fc"]  # of transformers' GPT-2
PADDING = -100  # `cross_entropy` ignores this id
MEASUREMENTS = 10  # number of times that the loss is written down
SAMPLE_TOKENS = 8192  # validation tokens of all measurements but the last
WARM_UP = 0.05  # share of the steps in which the learning rate rises
FINAL = 0.05  # share of the highest learning rate that is left at the end
BETAS = (0.9, 0.95)  # of AdamW; they average over fewer steps than its default does, because the training is short
WEIGHT_DECAY = 0.1
LARGEST_NORM = 1.0  # the gradient is cut to this length

Start = tuple[GPT2LMHeadModel, PreTrainedTokenizerFast]
Sentences = list[np.ndarray]  # token ids without BOS [sentence][token]
AfterStep = Callable[[int, int, GPT2LMHeadModel], object]  # gets the step, its number of tokens, and the model


@dataclass(frozen=True)
class Trained:
    """The result of a training."""

    model: GPT2LMHeadModel
    tokenizer: PreTrainedTokenizerFast
    curve: pd.DataFrame  # the table `training.csv`
    summary: dict[str, float]  # the entries of `training.json`


def train(settings: Embedded, corpus: Corpus, seed: int, output: Path | str) -> Trained:
    """Trains the embedded model and its tokenizer, or trains it further on another text, and writes a checkpoint folder.

    Args:
        settings: sizes, number of steps, learning rate, the text, the model that the training goes on from, and the steps
            after which a checkpoint is kept.
        corpus: `limit` and `validation_share` are used.
        seed: seed of the first weights and of the batches.
        output: checkpoint folder to write. transformers can load it; it also contains `training.csv` (the loss by
            step) and `training.json` (the result in numbers). The folder `steps/<step>` in it is the checkpoint of a
            step.
    Returns:
        The model, its tokenizer, and the contents of `training.csv` and `training.json`.
    Raises:
        UserError: a split has no sentences; a file of the text cannot be read; the model to go on from cannot be read, is no
            embedded model or has other sizes; or see `files.atomic`.
    Examples:
        >>> small = ffkv.settings.Embedded(layers=1, width=32, heads=2, vocabulary=300, steps=2, batch_tokens=64)
        >>> trained = ffkv.train(small, ffkv.settings.Corpus(limit=4), seed=0, output="checkpoint")
        >>> trained.model.config.n_layer
        1
    """
    text = Corpus(limit=corpus.limit, validation_share=corpus.validation_share)
    if settings.text:
        text = text.model_copy(update={"dataset": "files", "train": settings.text})
    documents = {split: list(read_documents(text, split)) for split in ("train", "validation")}
    start = read_start(Path(settings.tuned_from), settings) if settings.tuned_from else None
    with atomic(output) as temporary:
        with progress(settings.steps * settings.batch_tokens, "tokens", "training") as bar:

            def after_step(step: int, tokens: int, model: GPT2LMHeadModel) -> None:
                bar.update(tokens)
                if step in settings.keep_steps:
                    save_pretrained(temporary / STEPS / str(step), model)

            trained = train_model(documents["train"], documents["validation"], settings, seed, after_step, start)
            bar.total = bar.n  # few batches are full to the last token
        save_pretrained(temporary, trained.model)
        for folder in (temporary, *temporary.glob(f"{STEPS}/*")):
            save_pretrained(folder, trained.tokenizer)
        tables.write(trained.curve, temporary / "training.csv")
        (temporary / "training.json").write_text(json.dumps(trained.summary, indent=2) + "\n")
    return trained


def read_start(folder: Path, settings: Embedded) -> tuple[GPT2LMHeadModel, PreTrainedTokenizerFast]:
    """Reads the model and the tokenizer that a training goes on from.

    Raises:
        UserError: the folder cannot be read, its model is no embedded model, or its sizes are not those of the settings.
    """
    with looks_told(folder):
        if not is_file(folder / "config.json"):
            raise UserError(
                f"embedded.tuned_from is {str(folder)!r}: there is no checkpoint of transformers (config.json)."
            )
        try:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            if not isinstance(config, GPT2Config) or config.activation_function != "relu":
                raise UserError(
                    f"embedded.tuned_from is {str(folder)!r}: must be an embedded model, a GPT-2 with ReLU. Tune other models with"
                    " other software, and name what it saves as model.checkpoint or model.adapter."
                )
            model = GPT2LMHeadModel.from_pretrained(folder, torch_dtype=torch.float32)
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(f"The checkpoint {folder} cannot be read: {error}") from error
        sizes = {
            "layers": config.n_layer,
            "width": config.n_embd,
            "heads": config.n_head,
            "context": config.n_positions,
        }
        wrong = [f"{name} {size}" for name, size in sizes.items() if size != getattr(settings, name)]
        if wrong:
            raise UserError(f"The model in {folder} has {', '.join(wrong)}. Write the same sizes under `embedded:`.")
        return model, tokenizer


def train_model(
    train: list[Document],
    validation: list[Document],
    settings: Embedded,
    seed: int,
    after_step: AfterStep,
    start: Start | None = None,
) -> Trained:
    """Learns the vocabulary and the model from the train split, and measures the loss of both splits.

    The same documents, settings, seed and number of threads give the same weights to the bit. `after_step` is called
    after each step, and before the first one, as after step 0. `start`: the model and the tokenizer that the training goes
    on from, see `read_start`. Raises UserError if a split has no sentences.
    """
    if start is None:
        paragraphs = (paragraph for document in train for paragraph in document.text.splitlines())
        tokenizer = train_tokenizer(paragraphs, settings.vocabulary, settings.context)
        start = make_model(settings, len(tokenizer), seed), tokenizer
    model, tokenizer = start
    train_sentences = _encode(train, tokenizer, settings.context - 1, "train")
    validation_sentences = _encode(validation, tokenizer, settings.context - 1, "validation")
    if settings.shuffle:
        random = np.random.default_rng(seed)
        train_sentences = [random.permutation(ids) for ids in train_sentences]
    after_step(0, 0, model)
    with lora(model, settings.lora_rank, seed):
        curve = pd.DataFrame(fit(model, train_sentences, validation_sentences, settings, seed, after_step))
    train_tokens, validation_tokens = np.concatenate(train_sentences), np.concatenate(validation_sentences)
    summary = {
        "unigram_perplexity": unigram_perplexity(train_tokens, validation_tokens, len(tokenizer)),
        "validation_perplexity": float(curve["perplexity"].iloc[-1]),
        "parameters": model.num_parameters(),
        "train_tokens": len(train_tokens),
        "validation_tokens": len(validation_tokens),
        "steps": settings.steps,
        "seed": seed,
    }
    return Trained(model, tokenizer, curve, summary)


def _encode(documents: list[Document], tokenizer: PreTrainedTokenizerFast, max_tokens: int, split: str) -> Sentences:
    encoded = encode(documents, tokenizer, max_tokens, Corpus())
    if not encoded.ids:
        raise UserError(
            f"The {split} split of the text to train on has no sentences: raise corpus.limit or set it to 0."
        )
    return list(encoded.ids)


@contextlib.contextmanager
def lora(model: GPT2LMHeadModel, rank: int, seed: int) -> Iterator[None]:
    """Within the `with` statement, only a LoRA of a rank is trained, in place of a model. Then it is merged into the model.

    With rank 0 all weights are trained. A rank of r multiplies the LoRA by 1, so that its learning rate does not depend on r.
    """
    if not rank:
        yield
        return
    torch.manual_seed(seed)
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=BLOCK_MATRICES, fan_in_fan_out=True)
    adapted = get_peft_model(model, config)  # changes the modules of the model itself
    yield
    adapted.merge_and_unload()
    model.requires_grad_(True)


def fit(
    model: GPT2LMHeadModel,
    train: Sentences,
    validation: Sentences,
    settings: Embedded,
    seed: int,
    after_step: AfterStep,
) -> Iterator[dict[str, Any]]:
    """Trains the model in place. Yields the rows of `training.csv`, one per split after every tenth of the steps.

    The train loss is the mean over the steps since the row before. The validation loss is measured on a fixed sample,
    and after the last step on the whole split.
    """
    random = np.random.default_rng(seed)
    shuffled = [validation[number] for number in random.permutation(len(validation))]
    before = np.cumsum([0, *map(len, shuffled[:-1])])
    sample = [ids for ids, tokens in zip(shuffled, before) if tokens < SAMPLE_TOKENS]
    optimizer = torch.optim.AdamW(model.parameters(), betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)
    measured = {math.ceil(settings.steps * number / MEASUREMENTS) for number in range(1, MEASUREMENTS + 1)}
    tokens = 0
    losses: list[float] = []
    for step, ids in zip(range(1, settings.steps + 1), random_batches(train, settings.batch_tokens, random)):
        optimizer.param_groups[0]["lr"] = settings.learning_rate * schedule(step, settings.steps)
        with torch.enable_grad():
            loss_before = loss_of(model, ids)
            loss_before.backward()
        losses.append(loss_before.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM)
        optimizer.step()
        optimizer.zero_grad()
        tokens += (size := int((ids != PADDING).sum()))
        after_step(step, size, model)
        if step in measured:
            held_out = validation if step == settings.steps else sample
            reached = {"train": sum(losses) / len(losses)}
            reached["validation"] = evaluate(model, held_out, settings.batch_tokens)
            for split, loss in reached.items():
                yield {"step": step, "tokens": tokens, "split": split, "loss": loss, "perplexity": math.exp(loss)}
            losses = []


def schedule(step: int, steps: int) -> float:
    """Returns the share of the highest learning rate at a step from 1: a linear rise, then half a cosine."""
    warm_up = math.ceil(WARM_UP * steps)
    if step <= warm_up:
        return step / warm_up
    return FINAL + (1 - FINAL) * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up))) / 2


def random_batches(sentences: Sentences, batch_tokens: int, random: np.random.Generator) -> Iterator[Tensor]:
    """Yields batches without end, epoch after epoch: token ids [sentence, token], padded on the right with `PADDING`.

    A batch contains sentences of about the same length, so that there is little padding. The order of the batches and
    the choice among sentences of equal length are random.
    """
    lengths = np.array([len(ids) for ids in sentences])
    while True:
        order = random.permutation(len(sentences))
        epoch = batches(lengths[order], batch_tokens)
        for index in random.permutation(len(epoch)):
            yield pad([sentences[number] for number in order[epoch[index]]], value=PADDING)


def loss_of(model: GPT2LMHeadModel, ids: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy of each token after BOS and the tokens before it, in nats: "mean" or "sum" over the tokens.

    Causal attention does not see the padding on the right. The head is applied to real tokens only. `ids` are padded
    with `PADDING` [sentence, token].
    """
    inputs = torch.nn.functional.pad(ids[:, :-1].clamp(min=0), (1, 0), value=BOS_ID)
    hidden = model.transformer(inputs, use_cache=False).last_hidden_state
    real = ids != PADDING
    return cross_entropy(model.lm_head(hidden[real]), ids[real], reduction=reduction)


@torch.no_grad()
def evaluate(model: GPT2LMHeadModel, sentences: Sentences, batch_tokens: int) -> float:
    """Mean cross-entropy per token, in nats."""
    loss = 0.0
    for batch in batches(np.array([len(ids) for ids in sentences]), batch_tokens):
        loss += loss_of(model, pad([sentences[number] for number in batch], value=PADDING), "sum").item()
    return loss / sum(map(len, sentences))


def unigram_perplexity(train: np.ndarray, validation: np.ndarray, vocabulary: int) -> float:
    """Computes the perplexity of token frequencies: counts in `train` [token], plus 1, on those in `validation`."""
    counts = np.bincount(train, minlength=vocabulary) + 1
    return float(np.exp(-np.log(counts / counts.sum())[validation].mean()))

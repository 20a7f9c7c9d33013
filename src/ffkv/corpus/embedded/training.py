"""Trains the embedded model: a small GPT-2 with ReLU, on isolated sentences with BOS in front. Or trains it further (`tuning`).

The sentences are isolated because ffkv also gives each sentence a context of its own. So the workflow shows the model
the same kind of text as the training does.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from ffkv.base.batching import batches, pad
from ffkv.base.errors import UserError
from ffkv.base.settings import Corpus, Embedded
from ffkv.corpus.document import Document
from ffkv.corpus.embedded.tuning import lora
from ffkv.corpus.encode import encode, flatten

BOS = "<|bos|>"
BOS_ID = 0
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
    model, tokenizer = start or _begin(train, settings, seed)
    train_sentences = _encode(train, tokenizer, settings.context - 1, "train")
    validation_sentences = _encode(validation, tokenizer, settings.context - 1, "validation")
    if settings.shuffle:
        random = np.random.default_rng(seed)
        train_sentences = [random.permutation(ids) for ids in train_sentences]
    after_step(0, 0, model)
    with lora(model, settings.lora_rank, seed):
        curve = pd.DataFrame(fit(model, train_sentences, validation_sentences, settings, seed, after_step))
    train_tokens, validation_tokens = flatten(train_sentences), flatten(validation_sentences)
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


def _begin(train: list[Document], settings: Embedded, seed: int) -> Start:
    """Returns a model with random weights, and a tokenizer that has learnt from the train split."""
    paragraphs = (paragraph for document in train for paragraph in document.text.splitlines())
    tokenizer = train_tokenizer(paragraphs, settings.vocabulary, settings.context)
    return make_model(settings, len(tokenizer), seed), tokenizer


def train_tokenizer(texts: Iterable[str], vocabulary: int, context: int) -> PreTrainedTokenizerFast:
    """Learns byte-level byte-pair encoding as in GPT-2 from texts, with BOS in front. The same texts in the same order give the same tokenizer.

    `vocabulary`: number of tokens, with BOS (id 0) and the 256 bytes; short texts may give fewer. `context`: length of the
    model's longest input in tokens, with BOS, for the tokenizer's files.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, BOS_ID)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=BOS,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def _encode(documents: list[Document], tokenizer: PreTrainedTokenizerFast, max_tokens: int, split: str) -> Sentences:
    encoded = encode(documents, tokenizer, max_tokens, Corpus())
    if not encoded.ids:
        raise UserError(
            f"The {split} split of the text to train on has no sentences: raise corpus.limit or set it to 0."
        )
    return list(encoded.ids)


def make_model(settings: Embedded, vocabulary: int, seed: int) -> GPT2LMHeadModel:
    """Makes a GPT-2 with random weights. It has ReLU as the paper's model has: a memory is either active or not."""
    torch.manual_seed(seed)
    config = GPT2Config(
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
    return GPT2LMHeadModel(config)


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
    sample = _draw_sample(validation, random)
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


def _draw_sample(sentences: Sentences, random: np.random.Generator) -> Sentences:
    """Draws sentences with about `SAMPLE_TOKENS` tokens in all."""
    shuffled = [sentences[number] for number in random.permutation(len(sentences))]
    before = np.cumsum([0] + [len(ids) for ids in shuffled[:-1]])
    return [ids for ids, tokens in zip(shuffled, before) if tokens < SAMPLE_TOKENS]

"""A small GPT-2 with ReLU, and a tokenizer of its own: what the settings `embedded` describe.

`ffkv_embedded` trains such a model. The plan makes one before it is trained, and a tokenizer for its trial run.
"""

from collections.abc import Iterable

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from ffkv.base.settings import Embedded

BOS = "<|bos|>"
BOS_ID = 0


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

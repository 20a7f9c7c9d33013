"""The config of a fairseq language model, in the form of transformers."""

from typing import Any

from transformers import PreTrainedConfig

# Tuples, not lists: the hash of a model with these bands depends on it.
PAPER_BANDS: Any = ((20_000, 1024), (60_000, 256), (267_744, 64))


class FairseqConfig(PreTrainedConfig):
    """What `ffkv.model.fairseq.modeling` needs to know; the defaults are those of the paper's model."""

    model_type = "fairseq_adaptive_lm"

    vocab_size: int = 267_744
    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_hidden_layers: int = 16
    num_attention_heads: int = 8
    max_position_embeddings: int = 3072
    activation_function: str = "relu"
    scale_embedding: bool = True
    final_norm: bool = False
    input_bands: list[list[int]] = (
        PAPER_BANDS  # of each band of words: its end (exclusive), and the width of its vectors
    )
    output_bands: list[list[int]] = PAPER_BANDS  # likewise for the softmax
    tie_words: bool = True  # the softmax uses the input embeddings of the words
    tie_projections: bool = True  # it uses the input projections of all bands but the first
    pad_token_id: int | None = 1
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 2

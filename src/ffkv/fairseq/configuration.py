"""The form of a fairseq language model, in the words of transformers."""

from transformers import PreTrainedConfig


class FairseqConfig(PreTrainedConfig):
    """What `ffkv.fairseq.modeling` needs to know.

    input_bands, output_bands: of each band of the vocabulary, where it ends (exclusive) and how wide its vectors are.
    tie_words: the softmax has the words' input embeddings; tie_projections: and the projections of all bands but the first.
    """

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
    input_bands: list[list[int]] = ((20_000, 1024), (60_000, 256), (267_744, 64))
    output_bands: list[list[int]] = ((20_000, 1024), (60_000, 256), (267_744, 64))
    tie_words: bool = True
    tie_projections: bool = True
    pad_token_id: int | None = 1
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 2

"""fairseq's `transformer_lm` with adaptive input and adaptive softmax (Baevski and Auli 2019), as a model of
transformers.

    h_0 = sqrt(d) P_b e_w + p_t     the word's embedding, projected from its band's width, and its position
    r   = h + Attention(LN h)       the residual of the paper
    x   = LN r                      the FF input
    y   = f(x K + b1) V + b2        the FF output
    h'  = r + y                     the block output

The head is the whole adaptive softmax: the logits of this model are log-probabilities, in the order of the ids. There
is no matrix that they are a product with. The model is for reading only: forward passes have no gradients.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.modeling_outputs import CausalLMOutput

from ffkv.model.fairseq.adaptive import AdaptiveInput, AdaptiveSoftmax
from ffkv.model.fairseq.configuration import FairseqConfig

FIRST_POSITION = 2  # fairseq counts positions from the padding's id, 1, on


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: FairseqConfig):
        """Makes the four projections, with biases."""
        super().__init__()
        self.heads = config.num_attention_heads
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.k_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns attention output [sentence, token, d]. Without a mask, each token sees those up to itself."""
        q, k, v = (
            project(states).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A pre-norm block; modules have fairseq's names."""

    def __init__(self, config: FairseqConfig):
        """Makes the attention, the two matrices and their norms."""
        super().__init__()
        self.self_attn = Attention(config)
        self.self_attn_layer_norm = nn.LayerNorm(config.hidden_size)
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.final_layer_norm = nn.LayerNorm(config.hidden_size)
        self.activation = ACT2FN[config.activation_function]

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns the block output o = r + y [sentence, token, d]."""
        r = hidden_states + self.self_attn(self.self_attn_layer_norm(hidden_states), mask)
        x = self.final_layer_norm(r)
        return r + self.fc2(self.activation(self.fc1(x)))


def positions(numbers: Tensor, width: int, like: Tensor) -> Tensor:
    """Sinusoidal vectors [..., d] of positions [...] from 0: all sines, then all cosines, counted from 2."""
    half = width // 2
    rates = torch.exp(torch.arange(half, device=like.device) * -(math.log(10_000) / (half - 1)))
    angles = (FIRST_POSITION + numbers)[..., None] * rates
    return nn.functional.pad(torch.cat([angles.sin(), angles.cos()], -1), (0, width % 2)).to(like.dtype)


class Decoder(nn.Module):
    """Embeddings, blocks and the adaptive softmax."""

    def __init__(self, config: FairseqConfig):
        """Makes all parts."""
        super().__init__()
        self.scale = math.sqrt(config.hidden_size) if config.scale_embedding else 1.0
        self.embed_tokens = AdaptiveInput(config)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.layer_norm = nn.LayerNorm(config.hidden_size) if config.final_norm else None
        self.adaptive_softmax = AdaptiveSoftmax(config, self.embed_tokens)

    def forward(self, ids: Tensor, mask: Tensor | None = None, numbers: Tensor | None = None) -> Tensor:
        """Log-probabilities [sentence, token, vocabulary] of what follows each token of ids [sentence, token].

        `mask` is added to attention scores [sentence, 1, token, token]; without one, each token sees those up to
        itself. `numbers` are the positions of the tokens, from 0 [sentence, token]; by default one after the other.
        """
        states = self.scale * self.embed_tokens(ids)
        numbers = torch.arange(ids.shape[1], device=ids.device) if numbers is None else numbers
        states = states + positions(numbers, states.shape[-1], states)
        for layer in self.layers:
            states = layer(states) if mask is None else layer(states, mask)
        if self.layer_norm is not None:
            states = self.layer_norm(states)
        return self.adaptive_softmax(states.flatten(0, 1)).unflatten(0, ids.shape)


class FairseqForCausalLM(PreTrainedModel):
    """The language model. Sentences may be padded on the right without a mask, because no token sees later tokens."""

    config_class = FairseqConfig
    _supports_sdpa = True

    def __init__(self, config: FairseqConfig):
        """Makes the decoder."""
        super().__init__(config)
        self.decoder = Decoder(config)
        self.post_init()

    def get_input_embeddings(self) -> AdaptiveInput:
        """Returns the adaptive input. Its `weight` has a shape and nothing else."""
        return self.decoder.embed_tokens

    def get_output_embeddings(self) -> None:
        """None: no single matrix maps the residual stream to the vocabulary."""

    def forward(
        self,
        input_ids: Tensor,
        use_cache: bool = False,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutput:
        """Log-probabilities as logits [sentence, token, vocabulary] of ids [sentence, token]; there is no cache.

        A mask [sentence, 1, token, token] and positions [sentence, token] are heeded. A mask of padding [sentence, token] is
        not, because no token sees later tokens.
        """
        mask = attention_mask if attention_mask is not None and attention_mask.ndim == 4 else None
        return CausalLMOutput(logits=self.decoder(input_ids, mask, position_ids))


AutoConfig.register(FairseqConfig.model_type, FairseqConfig, exist_ok=True)
AutoModelForCausalLM.register(FairseqConfig, FairseqForCausalLM, exist_ok=True)

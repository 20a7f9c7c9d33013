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
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, initialization
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.biogpt.configuration_biogpt import BioGptConfig
from transformers.models.biogpt.modeling_biogpt import BioGptDecoderLayer

FIRST_POSITION = 2  # fairseq counts positions from the padding's id, 1, on
ROWS_PER_SUM = 16  # whose logits are summed at a time: few for the memory, enough for all threads
# Tuples, not lists: the hash of a model with these bands depends on it.
PAPER_BANDS: Any = ((20_000, 1024), (60_000, 256), (267_744, 64))


class FairseqConfig(PreTrainedConfig):
    """What `ffkv_fairseq.modeling` needs to know; the defaults are those of the paper's model."""

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


def band_sizes(bands: list[list[int]]) -> list[int]:
    """Returns the number of words of each band."""
    ends = [0, *(end for end, _ in bands)]
    return [stop - start for start, stop in pairwise(ends)]


class AdaptiveInput(nn.Module):
    """Embeddings of words, wide for frequent words and narrow for rare ones, all projected to d."""

    def __init__(self, config: FairseqConfig):
        super().__init__()
        self.vocabulary, self.width = config.vocab_size, config.hidden_size
        self.ends = [end for end, _ in config.input_bands]
        self.embeddings: Any = nn.ModuleList(
            nn.Sequential(nn.Embedding(size, width), nn.Linear(width, config.hidden_size, bias=False))
            for size, (_, width) in zip(band_sizes(config.input_bands), config.input_bands)
        )

    @property
    def weight(self) -> Tensor:
        """The shape [vocabulary, d] that a table of all embeddings would have, without the table: a meta tensor."""
        return torch.empty(self.vocabulary, self.width, device="meta")

    def forward(self, ids: Tensor) -> Tensor:
        """Embeddings [sentence, token, d] of ids [sentence, token]."""
        embedded = self.embeddings[0][0].weight.new_zeros(*ids.shape, self.width)
        for start, end, band in zip([0, *self.ends], self.ends, self.embeddings):
            inside = (ids >= start) & (ids < end)
            if inside.any():
                embedded[inside] = band(ids[inside] - start)
        return embedded


class Projection(nn.Module):
    """From the residual stream to a band's width, with an input projection's weight [d, width]."""

    def __init__(self, hidden_size: int, width: int):
        """Makes the matrix. `AdaptiveSoftmax` replaces it if it is tied."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size, width))

    def forward(self, states: Tensor) -> Tensor:
        """Projected states [n, width]."""
        return states @ self.weight


class AdaptiveSoftmax(nn.Module):
    """Log-probabilities of all words (Grave et al. 2017).

    The first softmax is over the words of the first band and over the other bands as wholes. Each other band has a
    softmax over its words, which is multiplied by the probability of the band.
    """

    def __init__(self, config: FairseqConfig, tied: AdaptiveInput):
        """Makes the head and the tails. Tied ones use the matrices of the input embeddings."""
        super().__init__()
        d, bands, sizes = config.hidden_size, config.output_bands, band_sizes(config.output_bands)
        self.vocabulary, self.ends = config.vocab_size, [end for end, _ in bands]
        words, classes = nn.Linear(d, sizes[0], bias=False), nn.Linear(d, len(bands) - 1, bias=False)
        self.head: Any = nn.ModuleDict({"word_proj": words, "class_proj": classes})
        # fairseq drops out between the two matrices of a tail; the gap keeps its names.
        self.tail: Any = nn.ModuleList(
            nn.Sequential(Projection(d, width), nn.Identity(), nn.Linear(width, size, bias=False))
            for size, (_, width) in zip(sizes[1:], bands[1:])
        )
        if config.tie_words:
            words.weight = tied.embeddings[0][0].weight
            tails: list[Any] = list(self.tail)
            for tail, (embedding, projection) in zip(tails, tied.embeddings[1:]):
                tail[2].weight = embedding.weight
                if config.tie_projections:
                    tail[0].weight = projection.weight

    def forward(self, states: Tensor) -> Tensor:
        """Log-probabilities [n, vocabulary] of states [n, d] in float32. Each band is computed in its place."""
        result = states.new_empty(len(states), self.vocabulary, dtype=torch.float32)
        words, bands = result[:, : self.ends[0]], self.head["class_proj"](states).float()
        _multiply(states, self.head["word_proj"].weight, words)
        whole = torch.logaddexp(_normalizers(words), bands.logsumexp(1))
        words -= whole[:, None]
        for number, (tail, start, end) in enumerate(zip(self.tail, self.ends, self.ends[1:])):
            inside = result[:, start:end]
            _multiply(tail[0](states), tail[2].weight, inside)
            inside -= (_normalizers(inside) + whole - bands[:, number])[:, None]
        return result


def _multiply(states: Tensor, weight: Tensor, place: Tensor) -> None:
    """Writes states @ weight.T into its place, without a copy if both have one type and no gradient is asked for."""
    if states.dtype == place.dtype and not torch.is_grad_enabled():
        torch.mm(states, weight.T, out=place)
    else:
        place.copy_(states @ weight.T)


def _normalizers(logits: Tensor) -> Tensor:
    """log sum exp [n] of the rows of logits [n, words], some rows at a time because `logsumexp` makes copies."""
    if torch.is_grad_enabled():  # a gradient needs the logits as they are now; the caller changes them in place
        logits = logits.clone()
    return torch.cat([rows.logsumexp(1) for rows in logits.split(ROWS_PER_SUM)])


def block(config: FairseqConfig, number: int) -> nn.Module:
    """Makes a pre-norm block. BioGPT has that of fairseq, with the same names of modules."""
    own = BioGptConfig(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_attention_heads=config.num_attention_heads,
        hidden_act=config.activation_function,
        attn_implementation="sdpa",  # causal without a mask
    )
    made = BioGptDecoderLayer(own, number)
    projections = made.self_attn._modules  # in fairseq's order: random weights are drawn in it
    made.self_attn._modules = {name: projections[name] for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
    return made


def positions(numbers: Tensor, width: int, like: Tensor) -> Tensor:
    """Sinusoidal vectors [..., d] of positions [...] from 0: all sines, then all cosines, counted from 2."""
    half = width // 2
    rates = torch.exp(torch.arange(half, device=like.device) * -(math.log(10_000) / (half - 1)))
    angles = (FIRST_POSITION + numbers)[..., None] * rates
    return nn.functional.pad(torch.cat([angles.sin(), angles.cos()], -1), (0, width % 2)).to(like.dtype)


class Decoder(nn.Module):
    """Embeddings, blocks and the adaptive softmax."""

    def __init__(self, config: FairseqConfig):
        super().__init__()
        self.scale = math.sqrt(config.hidden_size) if config.scale_embedding else 1.0
        self.embed_tokens = AdaptiveInput(config)
        self.layers = nn.ModuleList(block(config, number) for number in range(config.num_hidden_layers))
        self.layer_norm = nn.LayerNorm(config.hidden_size) if config.final_norm else None
        self.adaptive_softmax = AdaptiveSoftmax(config, self.embed_tokens)

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, numbers: Tensor | None = None, past: Cache | None = None
    ) -> Tensor:
        """Log-probabilities [sentence, token, vocabulary] of what follows each token of ids [sentence, token].

        `mask` is added to attention scores [sentence, 1, token, token]; without one, each token sees those up to
        itself. `numbers` are the positions of the tokens, from 0 [sentence, token]; by default one after the other. `past`
        holds keys and values of tokens before; whoever reads on from them gives a mask and positions.
        """
        states = self.scale * self.embed_tokens(ids)
        numbers = torch.arange(ids.shape[1], device=ids.device) if numbers is None else numbers
        states = states + positions(numbers, states.shape[-1], states)
        for layer in self.layers:
            states = layer(states, mask, past)
        if self.layer_norm is not None:
            states = self.layer_norm(states)
        return self.adaptive_softmax(states.flatten(0, 1)).unflatten(0, ids.shape)


class FairseqForCausalLM(PreTrainedModel):
    """The language model. Sentences may be padded on the right without a mask, because no token sees later tokens."""

    config_class = FairseqConfig
    _supports_sdpa = True

    def __init__(self, config: FairseqConfig):
        super().__init__(config)
        self.decoder = Decoder(config)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Also draws projections of their own: transformers knows only its own kinds of modules."""
        super()._init_weights(module)
        if isinstance(module, Projection) and not (self.config.tie_words and self.config.tie_projections):
            initialization.normal_(module.weight, std=0.02)  # as transformers draws matrices

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
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> CausalLMOutput:
        """Log-probabilities as logits [sentence, token, vocabulary] of ids [sentence, token]; a cache is filled if one is given.

        A mask [sentence, 1, token, token] and positions [sentence, token] are heeded. A mask of padding [sentence, token] is
        not, because no token sees later tokens.
        """
        mask = attention_mask if attention_mask is not None and attention_mask.ndim == 4 else None
        return CausalLMOutput(logits=self.decoder(input_ids, mask, position_ids, cache))


AutoConfig.register(FairseqConfig.model_type, FairseqConfig, exist_ok=True)
AutoModelForCausalLM.register(FairseqConfig, FairseqForCausalLM, exist_ok=True)

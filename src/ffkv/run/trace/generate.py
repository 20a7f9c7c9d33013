"""Text that the model of a finished run writes, untouched beside the same with memories switched off or scaled."""

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import DynamicCache

from ffkv.base.errors import UserError
from ffkv.base.settings import documents, section
from ffkv.model.effects.rerun import TOLERANCE, keeps
from ffkv.model.tap.change import Place, scaled
from ffkv.model.tap.hooks import forward, relative_error
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run import Run
from ffkv.run.results.run_model import RunModel
from ffkv.run.trace.prompt import check_prompt, read_changes, read_prompt
from ffkv.run.trace.settings import GenerateOptions


@documents(GenerateOptions)
def generate(run: Run, prompt: str, *, device: str = "auto", **options: Any) -> pd.DataFrame:
    """Writes text behind a prompt: untouched, and with memories switched off or scaled at every token, if any are named.

    Args:
        run: a finished run.
        prompt: the text to continue.
        device: as in `Run.model`.
        {options}
    Returns:
        One row per text, the untouched one first.
    Columns:
        changes: what changes, such as "L3.17 x 0"; "" for the untouched text.
        text: what the model writes behind the prompt.
        tokens: number of tokens of it.
    Raises:
        UserError: as `ffkv.trace`; or prompt and text do not fit into what the model reads.
    Examples:
        >>> texts = ffkv.generate(ffkv.open("results/tiny"), "The function", off="L1.17", tokens=5)
        >>> texts["changes"].tolist(), texts["tokens"].tolist()
        (['', 'L1.17 x 0'], [5, 5])
    """
    check_prompt(run, prompt)
    asked = section(GenerateOptions, **options)
    factors = read_changes(asked.off, asked.scale, run.files)
    model = run.model(device)
    ids = read_prompt(run, model.tokenizer, prompt).ids
    if len(ids) + asked.tokens > run.anatomy.context:
        raise UserError(
            f"The prompt has {len(ids)} tokens. With {asked.tokens} more it does not fit: {run.anatomy.checkpoint} reads at most"
            f" {run.anatomy.context}."
        )
    rows = []
    for changed in [{}, factors] if factors else [{}]:
        written = write_tokens(model, ids, changed, asked)
        name = ", ".join(f"{memory_name(*place)} x {factor:g}" for place, factor in changed.items())
        # A token can have another text where it begins one.
        before, whole = (model.tokenizer.decode(each) for each in (ids.tolist(), [*ids.tolist(), *written]))
        rows.append({"changes": name, "text": str(whole)[len(before) :], "tokens": len(written)})
    return pd.DataFrame(rows, columns=["changes", "text", "tokens"])


def write_tokens(
    model: RunModel, ids: np.ndarray, factors: Mapping[Place, float], options: GenerateOptions
) -> list[int]:
    """Returns ids that the model writes behind others, with coefficients multiplied by factors at every token.

    Keys and values of earlier tokens are kept, computed with the changes, too. Where the first token that is read behind them does
    not follow as in a pass over all tokens, every token has such a pass. The text ends in front of a token that
    generation_config.json, config.json or the tokenizer names as an end.

    `ids`: those in front [token]. `factors`: see `scaled`.
    """
    # Chat models name several tokens that end a text: of a document, and of a turn.
    own: Any = model.model
    sources = (getattr(own, "generation_config", None), own.config, own.config.get_text_config(decoder=True))
    named = [getattr(source, "eos_token_id", None) for source in (*sources, model.tokenizer)]
    ends = {end for some in named for end in (some if isinstance(some, list | tuple) else [some])}
    generator = torch.Generator().manual_seed(options.seed)
    written: list[int] = []
    cache = DynamicCache() if keeps(model) else None

    def logits(new: list[int], **given: Any) -> Tensor:
        output = forward(model.model, torch.tensor([new], device=model.device), **given)
        return output.logits[0, -1].float().cpu()

    with scaled(model.model, model.anatomy.layers, factors) if factors else contextlib.nullcontext():
        while len(written) < options.tokens:
            whole = [*ids.tolist(), *written]
            if cache is not None:
                found = logits(written[-1:] or whole, cache=cache)
                if len(written) == 1 and relative_error(found, logits(whole)) > TOLERANCE:
                    cache = None
            if cache is None:
                found = logits(whole)
            token = _choose(found, options, generator)
            if token in ends:
                break
            written.append(token)
    return written


def _choose(logits: Tensor, options: GenerateOptions, generator: torch.Generator) -> int:
    if options.temperature == 0:
        return int(logits.argmax())
    below = logits.double() - logits.max()  # divided by any number above 0, it has a softmax
    p, order = (below / options.temperature).softmax(-1).float().sort(descending=True, stable=True)
    kept = p.cumsum(-1) - p < options.top_p  # the first one always
    return int(order[torch.multinomial(p * kept, 1, generator=generator)])

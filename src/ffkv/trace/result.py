"""What a trace found, as tables."""

import json
from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup

POINTS = ("residual", "ffn", "output")  # r, y and o of a layer


@dataclass(frozen=True, repr=False)
class Trace:
    """One prompt through the model of a run. `docs/trace.md` defines every number.

    Layers, memories, positions and ranks count from 0. The tables are about the unchanged model, except `effect`.

    Attributes:
        run: name of the run.
        text: the prompt.
        note: what stands in front of the prompt, in one sentence; for an empty prompt it says what the model reads.
        position: the chosen token, as a position in `tokens`.
        token_id: id of the chosen next token.
        token: its text.
        changes: the memories that were changed, by name, with the factor of their coefficient: {"L3.17": 0.0}.
        everywhere: whether they were changed at every token; else at the chosen token only.
        tokens: what the model read, one row per token. Columns: position, token_id, token (its text), beginning (whether
            it is put in front of every text, and is no token of the prompt).
        predictions: the top tokens of head(r), head(y) and head(o), for every position and layer, the highest logit first.
            Columns: position, layer, point ("residual", "ffn", "output"), rank, token_id, token, probability.
        final: the model's prediction at the chosen position: its top tokens, and the chosen token. Columns: rank (number
            of tokens with a higher logit), token_id, token, probability.
        layers: the chosen position, one row per layer. Columns: layer, case (of figure 11), top_residual, top_ffn,
            top_output (texts of the tokens with the highest logit), norm_residual, norm_ffn, norm_output (lengths of r, y
            and o), factor (of a norm after the layer; else 1), logit (of the whole FF output, see `contributions`),
            active (number of memories with a positive coefficient), nonzero (number with a coefficient that is not 0),
            listed (number of memories in `contributions`), listed_share (their sizes, as a share of the sizes of all
            memories of the layer).
        contributions: the chosen position, the memories that contribute most to each layer: those with the largest size
            and those that change the chosen token's logit most. The largest size comes first. Columns: layer, memory,
            name ("L3.17"), coefficient, size (|m_i| ‖v_i‖ times the factor), share (of the FF output, along its own
            direction: contributions, remainders and bias of a layer add up to 1), logit (how much lower the chosen
            token's logit is if the contribution is taken out of the vector that the head reads), top_token,
            top_probability (of the value alone).
        remainders: the chosen position, what else the FF output of each layer is the sum of. Columns: layer, part ("other
            memories": all that are not listed, together; "bias": b), memories (how many), norm (length of their sum),
            share, logit (both as in `contributions`).
        sums: the largest relative deviations of the sums, one row per layer. Columns: layer, memories (of Σ m_i v_i + b,
            times the factor, from y, at the chosen position), residual (of r + y from o, at all positions; r is the block
            output of a second run of the block without the FF layer).
        logits_deviation: the largest relative deviation of head(last vector) from the model's own logits on this prompt.
        deviation: the largest of all these deviations.
        effect: the model's prediction at the chosen position before and after the changes: the top tokens of both, and
            the chosen token, the most probable one before the changes first. None without changes. Columns: token_id,
            token, before, after (probabilities), change (of the log-probability, nats).
        divergence: KL(p‖p_c) of these two predictions, nats: p before, p_c after. None without changes.
    """

    run: str
    text: str
    note: str
    position: int
    token_id: int
    token: str
    changes: dict[str, float]
    everywhere: bool
    tokens: pd.DataFrame
    predictions: pd.DataFrame
    final: pd.DataFrame
    layers: pd.DataFrame
    contributions: pd.DataFrame
    remainders: pd.DataFrame
    sums: pd.DataFrame
    logits_deviation: float
    deviation: float
    effect: pd.DataFrame | None = None
    divergence: float | None = None

    def __repr__(self) -> str:
        """One line for a person."""
        return f"<Trace of {self.text!r} in {self.run}: position {self.position}, deviation {self.deviation:.0e}>"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python values, by attribute. A table is a list of rows, a row a dictionary; NaN is None."""
        raise NotImplementedError

    def to_json(self) -> str:
        """Everything as JSON, see `to_dict`."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    def _repr_html_(self) -> Markup:
        """A summary for a notebook."""
        raise NotImplementedError

"""What changes of one layer do: directly, in the last residual alone, and in total, where the blocks after it run again."""

from collections.abc import Sequence

from torch import Tensor

from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects.measured import Effects, Prediction, measure_effects
from ffkv.model.effects.rerun import Rerun, Unchanged
from ffkv.model.head.head import Head

REACHES = ("direct", "total")


def measure_reaches(
    loaded: LoadedModel,
    head: Head,
    layer: Layer,
    rerun: Rerun,
    bases: Sequence[Unchanged],
    changes: Sequence[Tensor],
    predictions: Sequence[Prediction],
    tokens: Sequence[Tensor],
    reaches: Sequence[str] = REACHES,
) -> dict[str, list[Effects]]:
    """Returns the effects of changes of o at the last token of prefixes [prefix][change, d], by reach [prefix].

    Direct: the change is added to what the head reads. Total: the blocks after the layer run again. After the last layer there
    are none, so that both are the same. `rerun`: see `rerunning`. `predictions` and `tokens`: see `measure_effects`.
    """
    read_as = loaded.anatomy.read_as
    last = layer.index == read_as
    found = {}
    for reach in reaches[:1] if last else reaches:
        if last or reach == "direct":
            ends = [base.end + own.to(base.end.device) for base, own in zip(bases, changes, strict=True)]
        else:
            ends = rerun(bases, changes)
        found[reach] = measure_effects(head, ends, predictions, tokens, read_as)
    return dict.fromkeys(reaches, found[reaches[0]]) if last else found

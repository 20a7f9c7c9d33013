"""What the head reads after changes of one layer: changed directly, in the last residual alone, or in total."""

from collections.abc import Sequence

from torch import Tensor

from ffkv.base.files.columns import REACHES
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects.rerun import Along, Rerun, Unchanged


def changed_ends(
    loaded: LoadedModel,
    layer: Layer,
    rerun: Rerun,
    bases: Sequence[Unchanged],
    changes: Sequence[Tensor],
    reaches: Sequence[str] = REACHES,
    along: Along = None,
) -> dict[str, Sequence[Tensor]]:
    """Returns what the head reads after changes of o at the last tokens of prefixes [prefix][change, d], by reach.

    Direct: the change at the last token is added to what the head reads. Total: the blocks after the layer run again. After the
    last layer there are none, so that both are the same. `rerun`: see `rerunning`. `along`: see `rerun.Along`.
    """
    last, found = layer.index == loaded.anatomy.read_as, dict[str, Sequence[Tensor]]()
    for reach in reaches[:1] if last else reaches:
        if last or reach == "direct":
            own = changes if along is None else [n[:, -1:] * each for n, each in zip(along, changes, strict=True)]
            found[reach] = [base.end + each.to(base.end.device) for base, each in zip(bases, own, strict=True)]
        else:
            found[reach] = rerun(bases, changes, along)
    return dict.fromkeys(reaches, found[reaches[0]]) if last else found

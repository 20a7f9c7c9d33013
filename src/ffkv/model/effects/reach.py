"""What the head reads after changes of one layer: changed directly, in the last residual alone, or in total."""

from collections.abc import Sequence

from torch import Tensor

from ffkv.base.files.columns import REACHES
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects.rerun import Rerun, Unchanged


def changed_ends(
    loaded: LoadedModel,
    layer: Layer,
    rerun: Rerun,
    bases: Sequence[Unchanged],
    changes: Sequence[Tensor],
    reaches: Sequence[str] = REACHES,
) -> dict[str, Sequence[Tensor]]:
    """Returns what the head reads after changes of o at the last token of prefixes [prefix][change, d], by reach.

    Direct: the change is added to what the head reads. Total: the blocks after the layer run again. After the last layer there
    are none, so that both are the same. `rerun`: see `rerunning`.
    """
    last, found = layer.index == loaded.anatomy.read_as, dict[str, Sequence[Tensor]]()
    for reach in reaches[:1] if last else reaches:
        if last or reach == "direct":
            found[reach] = [base.end + own.to(base.end.device) for base, own in zip(bases, changes, strict=True)]
        else:
            found[reach] = rerun(bases, changes)
    return dict.fromkeys(reaches, found[reaches[0]]) if last else found

"""What one place of a graph does to the others and to the answer, past the places between them."""

import numpy as np
import pandas as pd

from ffkv.branches.behaviours.smallest import fewest
from ffkv.branches.behaviours.subject import Subject, patch
from ffkv.run.graph.settings import ANSWER


def measure_edges(subject: Subject, places: np.ndarray, effects: np.ndarray) -> pd.DataFrame:
    """Patches each place while all others keep their coefficients, and measures what changes: a row per edge.

    Args:
        places: of the graph [place].
        effects: by how much the logit difference falls if each is patched alone [place].
    Returns:
        Columns: source, target (numbers of places; `ANSWER`), change (by how much the coefficient of the target falls; of the
        answer, the logit difference), effect (in logits: the share of the target's own change, times the target's effect).
    """
    if not len(places):
        return pd.DataFrame({"source": [], "target": [], "change": [], "effect": []}).astype(
            {"source": int, "target": int}
        )
    differences, seen = patch(subject, [places[n : n + 1] for n in range(len(places))], hold=places)
    own = subject.m.ravel()[places].double().numpy()
    falls = own - subject.base.ravel()[places].double().numpy()
    change = own - seen  # [source, target]
    # The patch of a place whose coefficient stays as it is changes nothing.
    effect = np.divide(change, falls, out=np.zeros_like(change), where=falls != 0) * effects
    token, layer = places // subject.m.shape[1], subject.layer_of(places)
    after = (layer[:, None] < layer) & (token[:, None] <= token)
    source, target = np.nonzero(after)
    between = pd.DataFrame({"source": source, "target": target, "change": change[after], "effect": effect[after]})
    less = subject.difference - differences
    answer = pd.DataFrame({"source": np.arange(len(places)), "target": ANSWER, "change": less, "effect": less})
    return pd.concat([between, answer], ignore_index=True)


def largest_edges(edges: pd.DataFrame, share: float) -> pd.DataFrame:
    """Returns the fewest edges whose sizes are a share of those of all edges together, the largest first."""
    return edges.iloc[fewest(edges["effect"].abs().to_numpy(), share)].reset_index(drop=True)

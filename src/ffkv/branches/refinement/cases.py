"""The cases of figure 11: how the predictions of residual, FF output and block output relate."""

import numpy as np


def classify(top_r: np.ndarray, top_y: np.ndarray, top_o: np.ndarray) -> np.ndarray:
    """Names the case of each prefix in one layer, from the predictions of r, y and o [prefix] (paper section 5.2).

    - residual: top(o) = top(r), not top(y)
    - agreement: top(o) = top(r) = top(y)
    - ffn: top(o) = top(y), not top(r)
    - composition: all three differ
    - other: top(r) = top(y), not top(o); possible with a final norm or an adaptive softmax, not with a linear head
    """
    from_r, from_y, inputs_agree = top_o == top_r, top_o == top_y, top_r == top_y
    conditions = [from_r & from_y, from_r, from_y, inputs_agree]
    return np.select(conditions, ["agreement", "residual", "ffn", "other"], "composition")

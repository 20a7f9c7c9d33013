"""The contest of prefixes for the places among a layer's trigger examples, of one sign of the coefficients."""

from torch import Tensor

from ffkv.activations import top_t


class Contest:
    """The running top t of the keys of one layer: of their coefficients (`sign` 1), or of the negative ones (`sign` -1).

    best: the packed triggers so far, see `top_t` [key, t]. floor: what a coefficient must exceed, its sign apart [key].
    """

    def __init__(self, keys: int, t: int, sign: int, one_prefix_per_sentence: bool, device: str):
        """Nothing seen yet."""
        self._sign, self._one_prefix = sign, one_prefix_per_sentence
        self.best = top_t.start(keys, t, device)
        self.floor = top_t.floor(self.best)

    def enter(self, m: Tensor, extremes: Tensor, gate: Tensor | None, places: Tensor) -> None:
        """Lets the prefixes of a batch compete.

        Args:
            m: coefficients, 0 in the padding [sentence, token, key]. extremes: of each sentence the largest, or the smallest
                where `sign` is -1 [sentence, key].
            gate: whether the gate is positive, of the shape of m; None where the layer has none.
            places: place in the corpus of each sentence's first prefix; the next ones stand behind it [sentence].
        """
        if self._one_prefix:
            rows, keys = self._beyond(extremes).nonzero(as_tuple=True)
            values, tokens = (self._sign * m[rows, :, keys]).max(1)
        else:
            rows, tokens, keys = self._beyond(m).nonzero(as_tuple=True)
            values = self._sign * m[rows, tokens, keys]
        gates = 0 if gate is None else gate[rows, tokens, keys]
        top_t.insert(self.best, keys, top_t.pack(values, places[rows] + tokens, gates))
        self.refresh()

    def refresh(self) -> None:
        """Brings the floor to what `best` says."""
        self.floor = top_t.floor(self.best)

    def _beyond(self, coefficients: Tensor) -> Tensor:
        return coefficients > self.floor if self._sign > 0 else coefficients < -self.floor

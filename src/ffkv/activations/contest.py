"""The contest of prefixes for the places among a layer's trigger examples, of one sign of the coefficients."""

import torch
from torch import Tensor

from ffkv.activations import top_t
from ffkv.activations.batches import in_cache

# Candidates a key, on average, that are inserted at a time: an insertion touches the whole top t of many keys.
WAITING = 32
DENSE = 0.15  # share of candidates from which it is quicker to look at all than at each


class Contest:
    """The running top t of the keys of one layer: of their coefficients (`sign` 1), or of the negative ones (`sign` -1).

    best: the packed triggers so far, see `top_t` [key, t]; complete after `settle`. floor: what a coefficient must exceed,
    its sign apart [key].
    """

    def __init__(self, keys: int, t: int, sign: int, one_prefix_per_sentence: bool, device: str):
        """Nothing seen yet."""
        self._sign, self._one_prefix = sign, one_prefix_per_sentence
        self.best = top_t.start(keys, t, device)
        self.floor = top_t.floor(self.best)
        # Made once: small tensors that stay between large ones that go would keep the memory of these from use.
        self._keys = torch.zeros(WAITING * keys, dtype=torch.int32, device=device)
        self._packed = torch.zeros(WAITING * keys, dtype=torch.int64, device=device)
        self._waiting = 0

    def enter(self, m: Tensor, extremes: Tensor, gate: Tensor | None, places: Tensor) -> None:
        """Lets the prefixes of a batch compete.

        Args:
            m: coefficients, 0 in the padding [sentence, token, key]. extremes: of each sentence the largest, or the smallest
                where `sign` is -1 [sentence, key].
            gate: whether the gate is positive, of the shape of m; None where the layer has none.
            places: place in the corpus of each sentence's first prefix; the next ones stand behind it [sentence].
        """
        beyond = self._beyond(extremes if self._one_prefix else m)
        if self._one_prefix and beyond.sum() > DENSE * beyond.numel():
            return self._enter_all(m, extremes, beyond, gate, places)
        if self._one_prefix:
            rows, keys = beyond.nonzero(as_tuple=True)
            values, tokens = (self._sign * m[rows, :, keys]).max(1)
        else:
            rows, tokens, keys = beyond.nonzero(as_tuple=True)
            values = self._sign * m[rows, tokens, keys]
        gates = 0 if gate is None else gate[rows, tokens, keys]
        self._wait(keys, top_t.pack(values, places[rows] + tokens, gates))

    def _enter_all(self, m: Tensor, extremes: Tensor, beyond: Tensor, gate: Tensor | None, places: Tensor) -> None:
        """The same while many sentences have a chance: quicker than fetching each one's coefficients."""
        left = torch.arange(m.shape[1], 0, -1, dtype=m.dtype, device=m.device)[:, None]
        behind = torch.empty_like(extremes)  # tokens from the extreme, the first of equal ones, to the end
        for rows in in_cache(m):
            at_extreme = m.new_empty(m[rows].shape)
            torch.eq(m[rows], extremes[rows, None], out=at_extreme)
            torch.amax(at_extreme.mul_(left), 1, out=behind[rows])
        # Where the extreme is not a number there is none, and no candidate.
        tokens = (m.shape[1] - behind.long()).clamp_(max=m.shape[1] - 1)
        gates = 0 if gate is None else gate.gather(1, tokens[:, None])[:, 0]
        packed = top_t.pack(self._sign * extremes, places[:, None] + tokens, gates)
        candidates = torch.where(beyond, packed, top_t.NOTHING).T
        self.best = top_t.highest(torch.cat([self.best, candidates], 1), self.best.shape[1])
        self.floor = top_t.floor(self.best)

    def _wait(self, keys: Tensor, packed: Tensor) -> None:
        if self._waiting + len(keys) > len(self._keys):
            self.settle()
        if len(keys) > len(self._keys):
            top_t.insert(self.best, keys, packed)
            self.floor = top_t.floor(self.best)
            return
        part = slice(self._waiting, self._waiting + len(keys))
        self._keys[part], self._packed[part] = keys, packed
        self._waiting = part.stop

    def settle(self) -> None:
        """Inserts the candidates that wait, and brings the floor to what `best` says."""
        top_t.insert(self.best, self._keys[: self._waiting].long(), self._packed[: self._waiting])
        self._waiting = 0
        self.floor = top_t.floor(self.best)

    def _beyond(self, coefficients: Tensor) -> Tensor:
        return coefficients > self.floor if self._sign > 0 else coefficients < -self.floor

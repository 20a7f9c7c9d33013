"""The running top t of a layer's keys, of one sign of the coefficients: triggers packed into integers, so that it is a sort.

A trigger is one 64-bit integer. Its highest bits are those bits of its positive float32 coefficient that count for the order (see
`trigger_file`); they sort as the number does. Below them is the complement of its place in the corpus, then the rest of the
coefficient, and the last bit holds the sign of its gate. No two places are equal, so what is below them never decides. The t
largest integers are then the t highest coefficients, tied ones by sentence and position: the result does not depend on the order
in which prefixes are seen, and one state is merged into another by inserting it. The lowest coefficients are the highest of -m.
"""

import numpy as np
import torch
from torch import Tensor

from ffkv.activations.batches import in_cache
from ffkv.activations.trigger_file import FINE, FINE_BITS

PLACES = 2**31  # places in a corpus that 31 bits can tell apart
PLACE_SHIFT = FINE_BITS + 1
ROUGH_SHIFT = PLACE_SHIFT + 31
NOTHING = 0  # no trigger
# Candidates per key, on average, that are inserted together: an insertion reads the whole top t of many keys.
PENDING_PER_KEY = 32
DENSE_BYTES = 2**28  # of packed triggers that a GPU makes at a time
MERGE_BYTES = 2**25  # of packed triggers of a layer that a GPU keeps before it merges them
DENSE_SHARE = 0.15  # share of candidates above which it is quicker to look at all sentences than at each candidate


def empty(keys: int, t: int, device: torch.device | str) -> Tensor:
    """Returns an empty state [key, t]."""
    return torch.full((keys, t), NOTHING, dtype=torch.int64, device=device)


def pack(coefficients: Tensor, places: Tensor, gates: Tensor | int = 0) -> Tensor:
    """Returns one integer per candidate; arguments of one shape, whichever.

    `coefficients` are positive float32, `places` below 2^31; `gates`: whether the gate is positive.
    """
    bits = coefficients.contiguous().view(torch.int32).to(torch.int64)
    place = (PLACES - 1 - places) << PLACE_SHIFT
    return ((bits >> FINE_BITS) << ROUGH_SHIFT) | place | ((bits & FINE) << 1) | gates


def unpack(best: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients (float32), places (int64) and gates (bool) of packed triggers; 0, -1 and False for no trigger."""
    bits = ((best >> ROUGH_SHIFT) << FINE_BITS) | ((best >> 1) & FINE)
    places = PLACES - 1 - ((best >> PLACE_SHIFT) & (PLACES - 1))
    return bits.to(torch.int32).view(torch.float32), torch.where(best == NOTHING, -1, places), (best & 1).bool()


def least_tied(coefficients: Tensor) -> Tensor:
    """Returns the smallest number that is tied with each of some positive float32 coefficients."""
    return (coefficients.contiguous().view(torch.int32) & ~FINE).view(torch.float32)


def edges(best: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the place of each key's t-th best, and what a coefficient must exceed before and behind it [key] each.

    `best`: the state [key, t].
    """
    last = best[:, -1].contiguous()
    bits = (last >> ROUGH_SHIFT) << FINE_BITS
    # Tied coefficients win from an earlier place, and lose from a later one.
    before, behind = (
        torch.where(last == NOTHING, 0, edge).to(torch.int32).view(torch.float32)
        for edge in ((bits - 1).clamp(min=0), bits | FINE)
    )
    return unpack(last)[1], before, behind


def floor(edges: tuple[Tensor, Tensor, Tensor], places: Tensor) -> Tensor:
    """Returns what a coefficient must exceed to compete with each key's t-th best [sentence, key].

    `places`: place of each sentence's first prefix [sentence].
    """
    place, before, behind = edges
    return torch.where(places[:, None] > place, behind, before)


def highest(packed: Tensor, t: int) -> Tensor:
    """Returns the t highest of each row, descending on the CPU [key, t]."""
    if packed.device.type != "cpu":
        return packed.topk(t, sorted=False).values
    # NumPy sorts with vector instructions: six times as fast as a partial sort without them.
    return torch.from_numpy(np.sort(packed.numpy(), axis=1)[:, -t:]).flip(1)


def insert(best: Tensor, keys: Tensor, packed: Tensor) -> None:
    """Merges candidates on the CPU, for keys in any order [candidate], into the state, each row descending [key, t], in place."""
    if not len(keys):
        return
    order = keys.argsort()
    hit, counts = torch.unique_consecutive(keys[order], return_counts=True)
    rows = torch.repeat_interleave(counts)
    columns = torch.arange(len(keys)) - (counts.cumsum(0) - counts)[rows]
    t = best.shape[1]
    together = best.new_full((len(hit), t + int(counts.max())), NOTHING)
    together[:, :t] = best[hit]
    together[rows, t + columns] = packed[order]
    best[hit] = highest(together, t)


class TopT:
    """The t highest coefficients of each key of one layer (`sign` 1), or the t lowest (`sign` -1)."""

    def __init__(self, keys: int, t: int, sign: int, one_prefix_per_sentence: bool, device: torch.device | str):
        """Starts with no trigger."""
        self._sign, self.one_prefix = sign, one_prefix_per_sentence
        self.best = empty(keys, t, device)  # the packed triggers so far, complete after `settle` [key, t]
        self._edges: tuple[Tensor, Tensor, Tensor] | None = None  # of `best`; None until they are asked for
        # Allocated once: small tensors that stay would keep the memory between freed large ones from being used again.
        size = PENDING_PER_KEY * keys if self.best.device.type == "cpu" else 0
        self._pending_keys = torch.zeros(size, dtype=torch.int32)
        self._pending = torch.zeros(size, dtype=torch.int64)
        self._count = 0
        self._whole: list[Tensor] = []  # on a GPU: those of some batches, each [prefix, key]

    def enter(self, m: Tensor, peaks: Tensor, gate: Tensor | None, places: Tensor) -> None:
        """Lets the prefixes of a batch compete.

        `m`: coefficients, 0 in the padding [sentence, token, key]. `peaks`: each sentence's largest coefficient, or its smallest if
        `sign` is -1 [sentence, key]. `gate`: whether the gate is positive, of the shape of m; None if the layer has no gates.
        `places`: place in the corpus of each sentence's first prefix; the next prefixes follow it [sentence].
        """
        if m.device.type != "cpu":
            return self.enter_whole(m, peaks, gate, places)
        candidates = self._candidates(peaks if self.one_prefix else m, places)
        if self.one_prefix and candidates.sum() > DENSE_SHARE * candidates.numel():
            return self._enter_all(m, peaks, candidates, gate, places)
        if self.one_prefix:
            rows, keys = candidates.nonzero(as_tuple=True)
            tokens = self._first_tokens(m[rows, :, keys, None], peaks[rows, keys, None])[:, 0]
        else:
            rows, tokens, keys = candidates.nonzero(as_tuple=True)
        gates = 0 if gate is None else gate[rows, tokens, keys]
        self._add(keys, pack(self._sign * m[rows, tokens, keys], places[rows] + tokens, gates))

    def merge(self, triggers: Tensor) -> None:
        """Lets packed triggers compete [prefix, key]."""
        self._whole.append(triggers)
        if self.best.device.type == "cpu" or 8 * sum(each.numel() for each in self._whole) >= MERGE_BYTES:
            self._merge_whole()

    def _merge_whole(self) -> None:
        if self._whole:
            self.best = highest(torch.cat([self.best, *(each.T for each in self._whole)], 1), self.best.shape[1])
            self._whole, self._edges = [], None

    def enter_whole(self, m: Tensor, peaks: Tensor, gate: Tensor | None, places: Tensor) -> None:
        """Does what `enter` does, on a GPU.

        How many candidates there are is known only when the GPU has finished: so that nothing waits, all coefficients of the
        right sign are candidates.
        """
        if self.one_prefix:
            self._enter_all(m, peaks, self._sign * peaks > 0, gate, places)
        else:
            self._enter_each(m, self._sign * m > 0, gate, places)

    def _enter_all(self, m: Tensor, peaks: Tensor, candidates: Tensor, gate: Tensor | None, places: Tensor) -> None:
        """Does what `enter` does, but looks at every sentence: quicker while many of them are candidates."""
        tokens = self._first_tokens(m, peaks)
        values = m.gather(1, tokens[:, None])[:, 0]
        gates = 0 if gate is None else gate.gather(1, tokens[:, None])[:, 0]
        triggers = pack(self._sign * values, places[:, None] + tokens, gates)
        self.merge(torch.where(candidates, triggers, NOTHING))

    def _first_tokens(self, m: Tensor, peaks: Tensor) -> Tensor:
        """Finds the first token whose coefficient is tied with the peak [sentence, key]; arguments as in `enter`."""
        reaches = torch.ge if self._sign > 0 else torch.le
        if m.device.type != "cpu":
            return reaches(m, least_tied(peaks)[:, None]).view(torch.uint8).argmax(1)
        # On the CPU numbers that fit into the cache are faster than bytes.
        remaining = torch.arange(m.shape[1], 0, -1, dtype=m.dtype)[:, None]
        from_end = torch.empty_like(peaks)  # tokens from there to the end
        for rows in in_cache(m):
            at_peak = m.new_empty(m[rows].shape)
            reaches(m[rows], least_tied(peaks[rows, None]), out=at_peak)
            torch.amax(at_peak.mul_(remaining), 1, out=from_end[rows])
        # No token reaches a peak that is NaN or of the other sign; such a sentence is never a candidate.
        return (m.shape[1] - from_end.long()).clamp_(max=m.shape[1] - 1)

    def _enter_each(self, m: Tensor, candidates: Tensor, gate: Tensor | None, places: Tensor) -> None:
        """Does what `enter` does for every prefix, but looks at every token of every sentence."""
        tokens = torch.arange(m.shape[1], device=m.device)[:, None]
        rows = max(1, DENSE_BYTES // (8 * m[:1].numel()))
        for start in range(0, len(m), rows):
            part = slice(start, start + rows)
            gates = 0 if gate is None else gate[part]
            triggers = pack(self._sign * m[part], places[part, None, None] + tokens, gates)
            self.merge(torch.where(candidates[part], triggers, NOTHING).flatten(0, 1))

    def _add(self, keys: Tensor, triggers: Tensor) -> None:
        """Keeps candidates until there are enough of them to insert."""
        if self._count + len(keys) > len(self._pending_keys):
            self.settle()
        if len(keys) > len(self._pending_keys):
            self._insert(keys, triggers)
            return
        place = slice(self._count, self._count + len(keys))
        self._pending_keys[place], self._pending[place] = keys, triggers
        self._count = place.stop

    def settle(self) -> None:
        """Inserts the pending candidates. Triggers are then in order."""
        if self.best.device.type != "cpu":
            self._merge_whole()
            self.best = self.best.sort(1, descending=True).values
            return
        self._insert(self._pending_keys[: self._count].long(), self._pending[: self._count])
        self._count = 0

    def _insert(self, keys: Tensor, triggers: Tensor) -> None:
        insert(self.best, keys, triggers)
        self._edges = None

    def _candidates(self, coefficients: Tensor, places: Tensor) -> Tensor:
        if self._edges is None:
            self._edges = edges(self.best)
        least = floor(self._edges, places)
        least = least if self.one_prefix else least[:, None]
        return coefficients > least if self._sign > 0 else coefficients < -least

"""The running top t of a layer's keys, of one sign of the coefficients."""

import torch
from torch import Tensor

from ffkv.activations import packing
from ffkv.activations.batches import in_cache

# Candidates per key, on average, that are inserted together: an insertion reads the whole top t of many keys.
PENDING_PER_KEY = 32
DENSE_BYTES = 2**28  # of packed triggers that a GPU makes at a time
DENSE_SHARE = 0.15  # share of candidates above which it is quicker to look at all sentences than at each candidate


class TopT:
    """The t highest coefficients of each key of one layer (`sign` 1), or the t lowest (`sign` -1)."""

    def __init__(self, keys: int, t: int, sign: int, one_prefix_per_sentence: bool, device: torch.device | str):
        """Starts with no trigger."""
        self._sign, self.one_prefix = sign, one_prefix_per_sentence
        self.best = packing.start(keys, t, device)  # the packed triggers so far, complete after `settle` [key, t]
        self._edges: tuple[Tensor, Tensor, Tensor] | None = None  # of `best`; None until they are asked for
        # Allocated once: small tensors that stay would keep the memory between freed large ones from being used again.
        # A GPU keeps no candidates for later.
        size = PENDING_PER_KEY * keys if self.best.device.type == "cpu" else 0
        self._pending_keys = torch.zeros(size, dtype=torch.int32)
        self._pending = torch.zeros(size, dtype=torch.int64)
        self._count = 0

    def enter(self, m: Tensor, peaks: Tensor, gate: Tensor | None, places: Tensor) -> None:
        """Lets the prefixes of a batch compete.

        Args:
            m: coefficients, 0 in the padding [sentence, token, key].
            peaks: each sentence's largest coefficient, or its smallest if `sign` is -1 [sentence, key].
            gate: whether the gate is positive, of the shape of m; None if the layer has no gates.
            places: place in the corpus of each sentence's first prefix; the next prefixes follow it [sentence].
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
        self._add(keys, packing.pack(self._sign * m[rows, tokens, keys], places[rows] + tokens, gates))

    def merge(self, triggers: Tensor) -> None:
        """Lets packed triggers compete [prefix, key]."""
        self.best = packing.highest(torch.cat([self.best, triggers.T], 1), self.best.shape[1])
        self._edges = None

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
        triggers = packing.pack(self._sign * values, places[:, None] + tokens, gates)
        self.merge(torch.where(candidates, triggers, packing.NOTHING))

    def _first_tokens(self, m: Tensor, peaks: Tensor) -> Tensor:
        """Finds the first token whose coefficient is tied with the peak [sentence, key]; arguments as in `enter`."""
        reaches = torch.ge if self._sign > 0 else torch.le
        if m.device.type != "cpu":
            return reaches(m, packing.least_tied(peaks)[:, None]).view(torch.uint8).argmax(1)
        # On the CPU numbers that fit into the cache are faster than bytes.
        remaining = torch.arange(m.shape[1], 0, -1, dtype=m.dtype)[:, None]
        from_end = torch.empty_like(peaks)  # tokens from there to the end
        for rows in in_cache(m):
            at_peak = m.new_empty(m[rows].shape)
            reaches(m[rows], packing.least_tied(peaks[rows, None]), out=at_peak)
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
            triggers = packing.pack(self._sign * m[part], places[part, None, None] + tokens, gates)
            self.merge(torch.where(candidates[part], triggers, packing.NOTHING).flatten(0, 1))

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
            self.best = packing.in_order(self.best)
            return
        self._insert(self._pending_keys[: self._count].long(), self._pending[: self._count])
        self._count = 0

    def _insert(self, keys: Tensor, triggers: Tensor) -> None:
        packing.insert(self.best, keys, triggers)
        self._edges = None

    def _candidates(self, coefficients: Tensor, places: Tensor) -> Tensor:
        if self._edges is None:
            self._edges = packing.edges(self.best)
        floor = packing.floor(self._edges, places)
        floor = floor if self.one_prefix else floor[:, None]
        return coefficients > floor if self._sign > 0 else coefficients < -floor

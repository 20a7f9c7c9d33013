"""Contiguous parts that work is cut into: shards of a corpus, groups of layers."""

from dataclasses import dataclass

from ffkv.base.errors import UserError


@dataclass(frozen=True)
class Part:
    """One of several parts.

    Attributes:
        index: which part this is, from 0.
        count: how many parts there are.
    Examples:
        >>> ffkv.Part(1, 4).of(10)
        range(2, 5)
    """

    index: int = 0
    count: int = 1

    def of(self, total: int) -> range:
        """Returns the numbers of 0..total-1 that belong to this part.

        Parts are contiguous and as even as possible. Some are empty if there are more parts than numbers.

        Raises:
            UserError: there is no such part.
        """
        if not 0 <= self.index < self.count:
            raise UserError(f"There is no part {self.index} of {self.count}: parts count from 0.")
        return range(total * self.index // self.count, total * (self.index + 1) // self.count)


WHOLE = Part()

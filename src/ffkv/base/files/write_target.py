"""The file that HDF5 writes into: it remembers that a write failed, which HDF5 may not tell."""

import io
from typing import Any

from ffkv.base.system.signals import uninterrupted


class WriteTarget(io.FileIO):
    """A file that remembers the first write error, for example a full disk. `hdf5.create` raises it.

    HDF5 writes much of its data when it closes a dataset or a file. h5py cannot raise an error, or a signal's
    exception, that occurs there: the file would look complete, and the library would crash when the process ends.
    """

    failure: OSError | None = None

    @uninterrupted
    def write(self, data: Any) -> int:
        """Writes all of `data`; nothing more once a write has failed."""
        rest = memoryview(data).cast("B")
        try:
            while rest and not self.failure:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.failure = error
        return len(data)

    @uninterrupted
    def readinto(self, data: Any) -> int:
        """Fills `data`, as far as the file goes. The system may give less at a time, which HDF5 takes for an error."""
        rest = whole = memoryview(data).cast("B")
        while rest and (read := super().readinto(rest)):
            rest = rest[read:]
        return len(whole) - len(rest)

    @uninterrupted
    def truncate(self, size: int | None = None) -> int:
        """Truncates the file; does nothing more once a write has failed."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.failure = self.failure or error
            return size or 0

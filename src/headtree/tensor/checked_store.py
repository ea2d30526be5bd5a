"""Zarr folders whose chunks are checked as they are read. Import inside functions: this loads zarr."""

from __future__ import annotations

import re
from typing import Any

import google_crc32c
from zarr.storage import LocalStore

from headtree.errors import DamagedFileError

_CHUNK = re.compile(r"(.*/)?c(/\d+)*")
#: Length of the checksum at the end of a chunk.
_CHECKSUM = 4


class CheckedStore(LocalStore):  # type: ignore[misc]
    """A folder that was written with all chunks, each with its CRC-32C at the end.

    A chunk that is gone would be read as zeros, and one that is cut off or changed as other numbers: both are
    errors that name the file.
    """

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """The contents of a file, or None if it is one of the metadata files that need not exist."""
        value = await super().get(key, prototype, byte_range)
        if not _CHUNK.fullmatch(key):
            return value
        if value is None:
            raise DamagedFileError(f"{self.root / key} is gone; {REMEDY}")
        data = value.to_bytes()
        if google_crc32c.value(data[:-_CHECKSUM]).to_bytes(_CHECKSUM, "little") != data[-_CHECKSUM:]:
            raise DamagedFileError(f"{self.root / key} is damaged: its checksum does not match; {REMEDY}")
        return value


#: What to do about a damaged file.
REMEDY = "the command that made the run makes it again; save a tensor again"

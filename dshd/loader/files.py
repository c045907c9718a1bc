"""Where sources are read from: the disk, or a stored generation.

The steps up to the plan see files only through this, so that a stored generation is read by the same code as the disk,
and so that the list of what was read is exact.
"""

from __future__ import annotations

from typing import Protocol


class Files(Protocol):
    """A view of source files. Paths are absolute texts; a file that cannot be read raises `OSError`."""

    def read(self, path: str) -> bytes: ...

    def glob(self, pattern: str) -> list[str]:
        """Absolute paths that match an absolute pattern, sorted; editors' junk and hidden files never count."""

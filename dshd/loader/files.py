"""Where sources are read from: the disk, or a stored generation.

The steps up to the plan see files only through this, so that a stored generation is read by the same code as the disk,
and so that the list of what was read is exact.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import hashlib
import os
import stat
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any, Protocol

LARGEST = 16 * 1024 * 1024
"""Bytes of a file that are read at most; no source may be as large, and a log named by mistake is not taken in."""

JUNK = (".*", "*~", "#*#", "*.tmp", "*.bak", "*.orig", "*.swp", "4913")
"""Names that no pattern matches: hidden files and what editors leave beside a file."""

_TRIES = 20
_PAUSE = 0.005


class Files(Protocol):
    """A view of source files. Paths are absolute texts; a file that cannot be read raises `OSError`."""

    def read(self, path: str) -> bytes: ...

    def glob(self, pattern: str) -> list[str]:
        """Absolute paths that match an absolute pattern, sorted; editors' junk and hidden files never count.

        A pattern that ends in `/` matches directories, any other everything else, links that lead nowhere included.
        A directory that cannot be listed raises `OSError`; one that does not exist has nothing that matches.
        """


class Disk:
    """The disk as it is now. Blocks for as long as a file is being written, at most a tenth of a second."""

    def read(self, path: str) -> bytes:
        """The bytes of a regular file that did not change while they were read."""
        for _ in range(_TRIES):
            data = _read_stable(path)
            if data is not None:
                return data
            time.sleep(_PAUSE)
        raise OSError(errno.EBUSY, "changes while it is being read", path)

    def glob(self, pattern: str) -> list[str]:
        directory = os.path.dirname(pattern)
        while glob.has_magic(directory.replace("[[]", "").replace("[*]", "").replace("[?]", "")):
            directory = os.path.dirname(directory)
        try:
            os.listdir(_unescaped(directory))  # `glob` would take a directory that may not be listed for an empty one
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return []
        found = glob.glob(pattern, recursive=True)
        if pattern.endswith("/"):
            return sorted({path.rstrip("/") for path in found if os.path.isdir(path)})
        return sorted({path for path in found if not is_junk(path) and not os.path.isdir(path)})


class Recorded:
    """Another view of files that remembers what was asked and answered: one consistent snapshot, read once.

    A path or pattern asked for again gets the answer it got first, an error included.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._read: dict[str, bytes | OSError] = {}
        self._globs: dict[str, list[str] | OSError] = {}
        self._sources: frozenset[str] | None = None
        self.environment: tuple[str, ...] = ()
        """Names of the environment variables that were used beside the files; set by whoever resolves them."""
        self.credentials: tuple[str, ...] = ()
        """Names of the credentials, likewise."""

    @property
    def from_disk(self) -> bool:
        """Whether it is the disk that was read."""
        return isinstance(self._files, Disk)

    @property
    def missing(self) -> tuple[str, ...]:
        """Files that were asked for and could not be read."""
        return tuple(path for path, answer in self._read.items() if isinstance(answer, OSError))

    def read(self, path: str) -> bytes:
        if path not in self._read:
            try:
                self._read[path] = self._files.read(path)
            except OSError as exc:
                self._read[path] = exc
        answer = self._read[path]
        if isinstance(answer, OSError):
            raise OSError(answer.errno, answer.strerror, path)
        return answer

    def glob(self, pattern: str) -> list[str]:
        if pattern not in self._globs:
            try:
                self._globs[pattern] = self._files.glob(pattern)
            except OSError as exc:
                self._globs[pattern] = exc
        answer = self._globs[pattern]
        if isinstance(answer, OSError):
            raise OSError(answer.errno, answer.strerror, pattern)
        return list(answer)

    def keep(self, sources: Iterable[str]) -> None:
        """Say which files are configuration. Only they are stored: others may hold secrets and are read anew."""
        self._sources = frozenset(sources)

    def fingerprint(self) -> str:
        """A hash of every question and its answer."""
        whole = hashlib.sha256()
        for path, answer in sorted(self._read.items()):
            told = f"!{answer.errno}" if isinstance(answer, OSError) else hashlib.sha256(answer).hexdigest()
            whole.update(f"{path}\0{told}\0".encode("utf-8", "surrogateescape"))
        for pattern, matches in sorted(self._globs.items()):
            told = f"!{matches.errno}" if isinstance(matches, OSError) else "\0".join(matches)
            whole.update(f"*{pattern}\0{told}\0\0".encode("utf-8", "surrogateescape"))
        return whole.hexdigest()

    def again(self, files: Files) -> Recorded:
        """The same questions put to another view."""
        other = Recorded(files)
        other._sources, other.environment = self._sources, self.environment
        other.credentials = self.credentials
        for path in self._read:
            try:
                other.read(path)
            except OSError:
                continue
        for pattern in self._globs:
            try:
                other.glob(pattern)
            except OSError:
                continue
        return other

    def to_json(self) -> dict[str, Any]:
        """What `Stored.from_json` takes: the sources, if `keep` said which they are, else all files; all patterns."""
        return {
            "files": {
                path: _encoded(answer)
                for path, answer in self._read.items()
                if self._sources is None or path in self._sources or isinstance(answer, OSError)
            },
            "globs": {
                pattern: _encoded(answer) if isinstance(answer, OSError) else answer
                for pattern, answer in self._globs.items()
            },
        }


class Stored:
    """A generation as it was read once. Files that it does not hold (references are not stored) come from `beside`."""

    def __init__(
        self,
        files: dict[str, bytes | OSError],
        globs: dict[str, list[str] | OSError],
        beside: Files | None = None,
    ) -> None:
        self._read = files
        self._globs = globs
        self._beside: Files = beside if beside is not None else Disk()

    @classmethod
    def from_json(cls, data: dict[str, Any], beside: Files | None = None) -> Stored:
        """From what `Recorded.to_json` gave. Raises `ValueError` for anything else."""
        try:
            files = {str(path): _decoded(entry) for path, entry in data["files"].items()}
            globs = {
                str(pattern): _failure(entry) if isinstance(entry, dict) else [str(path) for path in entry]
                for pattern, entry in data["globs"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise ValueError(f"this is no stored generation: {exc!r}") from exc
        return cls(files, globs, beside)

    def read(self, path: str) -> bytes:
        if path not in self._read:
            return self._beside.read(path)
        answer = self._read[path]
        if isinstance(answer, OSError):
            raise OSError(answer.errno, answer.strerror, path)
        return answer

    def glob(self, pattern: str) -> list[str]:
        answer = self._globs[pattern] if pattern in self._globs else self._beside.glob(pattern)
        if isinstance(answer, OSError):
            raise OSError(answer.errno, answer.strerror, pattern)
        return list(answer)


def is_junk(path: str) -> bool:
    """Whether a path names a hidden file or what an editor leaves beside a file."""
    name = os.path.basename(path)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in JUNK)


def _read_stable(path: str) -> bytes | None:
    """The bytes, or `None` if the file changed meanwhile. A pipe or device is refused without waiting for it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as exc:
        raise OSError(errno.EINVAL, str(exc), path) from exc
    except FileNotFoundError as exc:
        if os.path.islink(path):
            target = os.readlink(path)
            raise OSError(exc.errno, f"is a link to {target!r}, which does not exist", path) from exc
        raise
    with open(handle, "rb", buffering=0) as file:
        before = os.fstat(handle)
        if stat.S_ISDIR(before.st_mode):
            raise OSError(errno.EISDIR, "is a directory", path)
        if not stat.S_ISREG(before.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", path)
        data = _read_all(file.read)
        if len(data) > LARGEST:
            raise OSError(errno.EFBIG, f"is larger than {LARGEST // 1024 // 1024} MiB", path)
        after = os.fstat(handle)
    named = os.stat(path) if os.path.exists(path) else None
    same = named is not None and _identity(before) == _identity(after) == _identity(named)
    return data if same and len(data) == after.st_size else None


def _read_all(read: Any) -> bytes:
    parts, total = [], 0
    while total <= LARGEST and (part := read(1 << 20)):
        parts.append(part)
        total += len(part)
    return b"".join(parts)


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _unescaped(path: str) -> str:
    """A directory without the brackets that `glob.escape` has put around its special characters."""
    return path.replace("[[]", "[").replace("[*]", "*").replace("[?]", "?")


def _encoded(answer: bytes | OSError) -> dict[str, Any]:
    if isinstance(answer, OSError):
        return {"errno": answer.errno, "error": answer.strerror}
    try:
        return {"text": answer.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(answer).decode("ascii")}


def _decoded(entry: dict[str, Any]) -> bytes | OSError:
    if "errno" in entry:
        return _failure(entry)
    return entry["text"].encode() if "text" in entry else b64decode(entry["base64"], validate=True)


def _failure(entry: dict[str, Any]) -> OSError:
    return OSError(int(entry["errno"]), str(entry["error"]))

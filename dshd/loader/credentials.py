"""Where credentials are looked for, at each use: a rotated one binds at the next call and nothing is restarted.

Nothing is kept between two reads but the parsed form of `credentials.yaml`, reused only for equal bytes. Values never
appear in messages, and a name can never become a path.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from dshd.kernel.secret import SecretUnavailableError

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
"""What a credential may be called. No slash and no leading dot: a name is no path."""

LIMIT = 1 << 20
"""Bytes a credential, or the file of all credentials, may have."""


class _Trouble(Exception):
    """A place has something, but it cannot be used; the message says why and shows no value."""


class _Texts(yaml.CBaseLoader):
    """Every scalar is text, no tag means anything, and a key may stand only once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise _Trouble(f"has {key.value!r} twice (line {key.start_mark.line + 1})")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


@dataclass(frozen=True, slots=True)
class Handle:
    """A text with credentials in it: parts that are known, and names (the odd ones) that are read at each use."""

    parts: tuple[str, ...]
    credentials: Credentials

    @property
    def names(self) -> tuple[str, ...]:
        return self.parts[1::2]

    def reveal(self) -> str:
        """The present value. Raises `SecretUnavailableError`."""
        read = self.credentials.read
        return "".join(read(part) if index % 2 else part for index, part in enumerate(self.parts))

    def __repr__(self) -> str:
        return f"<handle of {', '.join(self.names)}>"


class Credentials:
    """Reads credentials by name: `$CREDENTIALS_DIRECTORY`, the environment, then the state directory.

    An empty value counts as none. A place that has the name but cannot be read is an error, never passed over.
    """

    def __init__(self, environ: Mapping[str, str], state: str | os.PathLike[str] | None = None) -> None:
        self._environ = environ
        self._state = None if state is None else Path(state)
        self._parsed: tuple[bytes, dict[str, str]] = (b"", {})

    @property
    def directory(self) -> Path | None:
        """`$CREDENTIALS_DIRECTORY`, if it is set."""
        given = self._environ.get("CREDENTIALS_DIRECTORY")
        return Path(given) if given else None

    @property
    def file(self) -> Path | None:
        """The file that holds what `credentials set` has stored, if there is a state directory."""
        return None if self._state is None else self._state / "credentials.yaml"

    def files(self, name: str) -> tuple[Path, ...]:
        """Every file in which `name` is looked for, for watching; they need not exist."""
        found = [] if self.directory is None else [self.directory / name, self.directory / f"dshd_{name}"]
        return (*found, *([] if self.file is None else [self.file]))

    def places(self, name: str) -> tuple[str, ...]:
        """Every place where `name` is looked for, in order, in words."""
        directory = self.directory
        first = (
            ["$CREDENTIALS_DIRECTORY (not set)"]
            if directory is None
            else [str(directory / name), str(directory / f"dshd_{name}")]
        )
        return (*first, f"environment variable {name}", *([] if self.file is None else [str(self.file)]))

    def read(self, name: str) -> str:
        """The present value of `name`. Raises `SecretUnavailableError`, which names every place looked at."""
        if not NAME.fullmatch(name):
            raise SecretUnavailableError(name, f"{name!r} cannot be the name of a credential")
        empty = []
        for place, look in self._look(name):
            try:
                value = look()
            except _Trouble as exc:
                raise SecretUnavailableError(name, f"credential {name!r} cannot be read: {place} {exc}") from None
            if value:
                return value
            if value is not None:
                empty.append(place)
        places = [f"{place} (empty)" if place in empty else place for place in self.places(name)]
        raise SecretUnavailableError(name, f"credential {name!r} is missing; looked at {', '.join(places)}")

    def where(self, name: str) -> str | None:
        """The place whose value counts now, in words; `None` if there is none or it cannot be read."""
        if not NAME.fullmatch(name):
            return None
        try:
            return next((place for place, look in self._look(name) if look()), None)
        except _Trouble:
            return None

    def check(self, name: str) -> str | None:
        """Why `name` cannot be read now, or `None` if it can."""
        try:
            self.read(name)
        except SecretUnavailableError as exc:
            return str(exc)
        return None

    def stored(self) -> Mapping[str, str]:
        """What the file of the state directory holds. Raises `SecretUnavailableError`."""
        try:
            return self._stored()
        except _Trouble as exc:
            raise SecretUnavailableError("", f"credentials cannot be read: {self.file} {exc}") from None

    def _look(self, name: str) -> Iterator[tuple[str, Callable[[], str | None]]]:
        """Each place in words, with what gives the value there, `None` if there is none."""
        directory, file = self.directory, self.file
        if directory is not None:
            for path in (directory / name, directory / f"dshd_{name}"):
                yield str(path), partial(_text, path)
        yield f"environment variable {name}", partial(self._environ.get, name)
        if file is not None:
            yield str(file), lambda: self._stored().get(name)

    def _stored(self) -> dict[str, str]:
        raw = None if self.file is None else _bytes(self.file)
        if raw is None:
            return {}
        known, parsed = self._parsed
        if raw != known:
            parsed = _parse(raw)
            self._parsed = (raw, parsed)
        return parsed


def _bytes(path: Path) -> bytes | None:
    """The bytes of a regular file, `None` if there is none."""
    try:
        # Not blocking: opening a pipe that somebody put there must not hang.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise _Trouble(f"cannot be opened ({exc.strerror})") from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _Trouble("is not a file")
        parts, left = [], LIMIT + 1
        while left and (part := os.read(handle, left)):
            parts.append(part)
            left -= len(part)
    except OSError as exc:
        raise _Trouble(f"cannot be read ({exc.strerror})") from None
    finally:
        os.close(handle)
    raw = b"".join(parts)
    if len(raw) > LIMIT:
        raise _Trouble(f"is larger than {LIMIT >> 20} MiB")
    return raw


def _text(path: Path) -> str | None:
    raw = _bytes(path)
    return None if raw is None else without_final_newline(_decoded(raw))


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        raise _Trouble(f"is not UTF-8 (byte {exc.start})") from None


def without_final_newline(text: str) -> str:
    """What editors and `echo` add at the end, taken off: one newline."""
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


def _parse(raw: bytes) -> dict[str, str]:
    try:
        data = yaml.load(_decoded(raw), _Texts)
    except yaml.MarkedYAMLError as exc:
        line = "" if exc.problem_mark is None else f" (line {exc.problem_mark.line + 1})"
        raise _Trouble(f"is not valid YAML{line}") from None
    except yaml.YAMLError:
        raise _Trouble("is not valid YAML") from None
    if not data:
        return {}
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise _Trouble("is not a mapping of names to texts")
    return {name: without_final_newline(value) for name, value in data.items()}

"""What has run: numbered generations on disk, the results of attempts, and what must survive a restart.

A stored generation holds the bytes of its sources, hence references and never the values of secrets; it is evaluated
anew when it is started or rolled back to. Files are written beside and renamed, with mode 0600.

Setting something changes memory only. `store` and `save` write it, which outlives the process; `flush` makes what was
written outlive the machine. All three block: call them in a thread.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .files import Stored

KEPT = 20


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One committed tree: its number, digest, when and by which attempt, and the files it was read from."""

    number: int
    digest: str
    attempt: str
    time: str
    files: dict[str, Any]
    confirmed: bool = True


@dataclass(frozen=True, kw_only=True)
class Hold:
    """A rollback that holds: the generation to run for as long as the sources are what they were."""

    generation: int
    fingerprint: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Unconfirmed:
    """A generation that rolls back to `previous` unless it is confirmed by `by` (seconds since the epoch)."""

    generation: int
    previous: int
    by: float


class History:
    """The state directory's record of generations and attempts. Reading tolerates what a crash has left."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._generations = state / "generations"
        self._generations.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._unsynced: dict[Path, None] = {}
        found = self._read("reloads.json")
        self.results: list[dict[str, Any]] = [
            entry for entry in (found if isinstance(found, list) else []) if isinstance(entry, dict)
        ][:KEPT]
        self._encoded_of = list(self.results)
        self._encoded = [json.dumps(result) for result in self.results]
        self._results_saved = True
        self._kept: dict[str, Any] = {}
        self.hold: Hold | None = self._load("hold.json", Hold)
        self.unconfirmed: Unconfirmed | None = self._load("unconfirmed.json", Unconfirmed)
        self._kept = {"hold.json": self.hold, "unconfirmed.json": self.unconfirmed}
        self.last_number = self._last_kept = max([*self.numbers(), *self._remembered()], default=0)

    def _remembered(self) -> list[int]:
        """Numbers that were given to generations, by whatever still tells of them."""
        number = self._read("number.json")
        told = [number.get("last") if isinstance(number, dict) else 0, *(r.get("generation") for r in self.results)]
        return [
            *(each for each in told if type(each) is int),
            *([] if self.hold is None else [self.hold.generation]),
            *([] if self.unconfirmed is None else [self.unconfirmed.generation]),
        ]

    # -- generations

    def numbers(self) -> list[int]:
        """The numbers that are stored, ascending."""
        return sorted(int(path.stem) for path in self._generations.glob("*.json") if path.stem.isdecimal())

    def get(self, number: int) -> Generation | None:
        """A stored generation, if it is there and can be read."""
        generation: Generation | None = self._load(f"generations/{number:08d}.json", Generation)
        try:
            if generation is not None:
                Stored.from_json(generation.files)
        except ValueError:
            return None
        return generation

    def last_good(self) -> Generation | None:
        """The newest generation that was confirmed and can be read."""
        found = (self.get(number) for number in reversed(self.numbers()))
        return next((each for each in found if each is not None and each.confirmed), None)

    def before(self, number: int, digest: str) -> Generation | None:
        """The newest earlier generation that is another tree than `digest`: what a rollback goes back to."""
        found = (self.get(each) for each in reversed(self.numbers()) if each < number)
        return next((each for each in found if each is not None and each.digest != digest), None)

    def store(self, generation: Generation) -> None:
        """Keep a committed generation, and what else has been set."""
        with self._lock:
            self.last_number = max(self.last_number, generation.number)
            self._write(f"generations/{generation.number:08d}.json", json.dumps(vars(generation)))
        self.save()

    def confirm(self, number: int) -> None:
        """Every generation up to this one may be started again."""
        for each in self.numbers():
            generation = self.get(each)
            if generation is not None and not generation.confirmed and each <= number:
                with self._lock:
                    changed = json.dumps({**vars(generation), "confirmed": True})
                    self._write(f"generations/{each:08d}.json", changed)
        self.save()

    # -- what survives a restart

    @property
    def unsaved(self) -> bool:
        """Whether `hold` or `unconfirmed` is not what was written."""
        return self._kept != {"hold.json": self.hold, "unconfirmed.json": self.unconfirmed}

    def save(self) -> None:
        """Write `hold` and `unconfirmed` if they have changed."""
        with self._lock:
            for name, value in (("hold.json", self.hold), ("unconfirmed.json", self.unconfirmed)):
                if self._kept.get(name) != value:
                    if value is None:
                        (self._state / name).unlink(missing_ok=True)
                    else:
                        self._write(name, json.dumps(asdict(value)))
                    self._kept[name] = value

    def add_result(self, result: dict[str, Any]) -> None:
        """Keep the result of an attempt; of all of them the last twenty, the newest first."""
        self.results = [result, *self.results][:KEPT]
        self._results_saved = False

    def flush(self) -> None:
        """Write the results, make everything written outlive the machine, and forget what is too old."""
        with self._lock:
            if not self._results_saved:
                self._results_saved = True
                known = dict(zip(map(id, self._encoded_of), self._encoded, strict=True))
                now = list(self.results)
                self._encoded = [known.get(id(result)) or json.dumps(result) for result in now]
                self._encoded_of = now
                self._write("reloads.json", f"[{','.join(self._encoded)}]", lasting=False)
            if self._last_kept != self.last_number:
                self._last_kept = self.last_number
                self._write("number.json", json.dumps({"last": self.last_number}))
            written, self._unsynced = list(self._unsynced), {}
            numbers = self.numbers()
        for path in written:
            _sync(path)
        for directory in dict.fromkeys(path.parent for path in written):
            _sync(directory)
        for number in numbers[:-KEPT]:
            (self._generations / f"{number:08d}.json").unlink(missing_ok=True)

    # -- files

    def _load(self, name: str, kind: Any) -> Any:
        data = self._read(name)
        try:
            value = None if data is None else kind(**data)
        except TypeError:
            return None
        return value if value is None or _is_well_formed(value) else None

    def _read(self, name: str) -> Any:
        try:
            return json.loads((self._state / name).read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            return None

    def _write(self, name: str, text: str, *, lasting: bool = True) -> None:
        path = self._state / name
        beside = path.with_name(f".{path.name}.new")
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        beside.replace(path)
        if lasting:
            self._unsynced[path] = None


_FIELDS: dict[str, type | tuple[type, ...]] = {
    "number": int, "digest": str, "attempt": str, "time": str, "files": dict, "confirmed": bool, "generation": int,
    "fingerprint": str, "reason": str, "previous": int, "by": (int, float),
}  # fmt: skip


def _is_well_formed(value: Any) -> bool:
    return all(isinstance(field, _FIELDS[name]) for name, field in vars(value).items())


def _sync(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""What has run: numbered generations on disk, the results of attempts, and what must survive a restart.

A stored generation holds the bytes of its sources, hence references and never the values of secrets; it is evaluated
anew when it is started or rolled back to. Files are written beside and renamed, with mode 0600.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
        self.results: list[dict[str, Any]] = self._read("reloads.json") or []
        self.hold: Hold | None = self._load("hold.json", Hold)
        self.unconfirmed: Unconfirmed | None = self._load("unconfirmed.json", Unconfirmed)
        self.last_number = max([*self.numbers(), int((self._read("number.json") or {}).get("last", 0))], default=0)

    # -- generations

    def numbers(self) -> list[int]:
        """The numbers that are stored, ascending."""
        return sorted(int(path.stem) for path in self._generations.glob("*.json") if path.stem.isdigit())

    def get(self, number: int) -> Generation | None:
        data = self._read(f"generations/{number:08d}.json")
        try:
            return None if data is None else Generation(**data)
        except TypeError:
            return None

    def last_good(self) -> Generation | None:
        """The newest generation that was confirmed and can be read."""
        for number in reversed(self.numbers()):
            generation = self.get(number)
            if generation is not None and generation.confirmed:
                return generation
        return None

    def store(self, generation: Generation) -> None:
        """Keep a committed generation, and of all of them the last twenty."""
        self.last_number = max(self.last_number, generation.number)
        self._write(f"generations/{generation.number:08d}.json", asdict(generation))
        self._write("number.json", {"last": self.last_number})
        for number in self.numbers()[:-KEPT]:
            (self._generations / f"{number:08d}.json").unlink(missing_ok=True)

    def confirm(self, number: int) -> None:
        """Every generation up to this one may be started again."""
        for each in self.numbers():
            generation = self.get(each)
            if generation is not None and not generation.confirmed and each <= number:
                self._write(f"generations/{each:08d}.json", {**asdict(generation), "confirmed": True})
        self.set_unconfirmed(None)

    # -- what survives a restart

    def set_hold(self, hold: Hold | None) -> None:
        self.hold = hold
        self._keep("hold.json", hold)

    def set_unconfirmed(self, unconfirmed: Unconfirmed | None) -> None:
        self.unconfirmed = unconfirmed
        self._keep("unconfirmed.json", unconfirmed)

    def add_result(self, result: dict[str, Any]) -> None:
        """Keep the result of an attempt; of all of them the last twenty, the newest first."""
        self.results = [result, *self.results][:KEPT]
        self._write("reloads.json", self.results)

    # -- files

    def _keep(self, name: str, value: Hold | Unconfirmed | None) -> None:
        if value is None:
            (self._state / name).unlink(missing_ok=True)
        else:
            self._write(name, asdict(value))

    def _load(self, name: str, kind: Any) -> Any:
        data = self._read(name)
        try:
            return None if data is None else kind(**data)
        except TypeError:
            return None

    def _read(self, name: str) -> Any:
        try:
            return json.loads((self._state / name).read_text("utf-8"))
        except (OSError, ValueError):
            return None

    def _write(self, name: str, data: Any) -> None:
        path = self._state / name
        beside = path.with_name(f".{path.name}.new")
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)

"""What is stored beside a session's log: who it is and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from dshd.capabilities.llm.counts import check_count, check_optional_count
from dshd.capabilities.values.ids import SessionId
from dshd.capabilities.values.json import Json, MalformedValueError, make_whole, member, optional

VERSION = 1
"""The format of logs written now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHeader:
    """The metadata of one session. Immutable; a fork has a header of its own.

    Raises `MalformedValueError` for an empty id, a `cwd` that is not absolute, and members of other types.
    """

    id: SessionId
    created_at: int
    """Milliseconds since the epoch."""
    cwd: str | None = None
    """The workspace, an absolute path."""
    parent_session: SessionId | None = None
    seed_length: int | None = None
    """How many events at the beginning came from elsewhere."""
    origin: Literal["subagent"] | None = None
    delegation_depth: int | None = None
    version: int = VERSION

    def __post_init__(self) -> None:
        make_whole(self, "id", "cwd", "parent_session")
        parent: object = "none" if self.parent_session is None else self.parent_session
        for name, identity in (("id", self.id), ("parent_session", parent)):
            if not isinstance(identity, str) or not identity:
                raise MalformedValueError(f"the {name} of a session is text and not empty, so it is not {identity!r}")
        cwd: object = self.cwd
        if cwd is not None and not (isinstance(cwd, str) and cwd.startswith("/") and "\0" not in cwd):
            raise MalformedValueError(f"the workspace of a session is an absolute path, not {cwd!r}")
        if self.origin not in (None, "subagent"):
            raise MalformedValueError(f"the origin of a session is 'subagent' or nothing, not {self.origin!r}")
        check_count("created_at", self.created_at)
        check_count("the version of a session header", self.version, 1)
        check_optional_count("seed_length", self.seed_length)
        check_optional_count("delegation_depth", self.delegation_depth)

    def to_json(self) -> dict[str, Json]:
        members: dict[str, Any] = {
            "version": self.version, "id": self.id, "created_at": self.created_at, "cwd": self.cwd,
            "parent_session": self.parent_session, "seed_length": self.seed_length, "origin": self.origin,
            "delegation_depth": self.delegation_depth,
        }  # fmt: skip
        return {name: value for name, value in members.items() if value is not None}

    @classmethod
    def from_json(cls, data: Json) -> SessionHeader:
        """The header a JSON object stands for. Raises `MalformedValueError`, also for a newer version."""
        what = "a session header"
        version = member(data, "version", int, what)
        if version > VERSION:
            raise MalformedValueError(
                f"{what} is of version {version}, written by a newer release; this one knows {VERSION}"
            )
        parent: Any = optional(data, "parent_session", str, what)
        origin: Any = optional(data, "origin", str, what)
        return cls(
            version=version,
            id=SessionId(member(data, "id", str, what)),
            created_at=member(data, "created_at", int, what),
            cwd=optional(data, "cwd", str, what),
            parent_session=parent,
            seed_length=optional(data, "seed_length", int, what),
            origin=origin,
            delegation_depth=optional(data, "delegation_depth", int, what),
        )

"""The inputs of a configuration and the pure function from them to what should run.

`evaluate` is the same for a hot reload, a cold start, a rollback and `dshd check`: it reads through a `Files`, so a
stored generation gives the verdict that the disk would have given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from .credentials import Credentials
from .desired import Memo, desire
from .events import LOADER
from .files import Disk, Files, Recorded
from .issues import Issue, Issues
from .layers import compose
from .reparse import Parses
from .resolve import Resolver
from .row import Tree
from .spec import Desired, Spec


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where a configuration comes from, and what the process around it offers."""

    roots: tuple[str, ...]
    """The config files given, absolute; later ones are layers over earlier ones."""
    environ: Mapping[str, str]
    credentials: Credentials
    key: bytes
    """Key of the hashes that stand for secrets in digests."""
    provided: frozenset[str] = frozenset({LOADER.name})
    """Names of services that the process itself provides."""
    daemon_model: type[BaseModel] | None = None
    also: Callable[[Tree], Iterable[Issue]] = lambda tree: ()
    """Further findings about a composed tree, which only the process can know."""
    resolver: Resolver = field(default_factory=Resolver)
    memo: Memo = field(default_factory=Memo)
    """What the last evaluation found, so that an unchanged row costs little."""
    parses: Parses = field(default_factory=Parses)
    """The files of the last evaluation, so that an unchanged part of one costs little."""

    def evaluate(self, files: Files, running: Mapping[str, Spec] | None = None) -> Desired:
        """Everything up to the plan, for one view of the files. Blocks and imports plugins: call it in a thread."""
        issues = Issues()
        tree = compose(files, self.roots, issues, self.parses)
        issues.add(self.also(tree))
        return desire(
            tree,
            files=files,
            environ=self.environ,
            credentials=self.credentials,
            key=self.key,
            provided=self.provided,
            daemon_model=self.daemon_model,
            plugins=self.resolver,
            issues=issues,
            memo=self.memo,
            running=running,
        )


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One evaluation of the sources: what they say, and the exact bytes it is based on."""

    desired: Desired
    files: Recorded
    fingerprint: str

    @property
    def missing(self) -> bool:
        """Whether a file that should be there could not be read."""
        return bool(self.files.missing)


def read(sources: Sources, files: Files | None = None, running: Mapping[str, Spec] | None = None) -> Reading:
    """Read and evaluate, from the disk unless another view is given."""
    recorded = Recorded(files if files is not None else Disk())
    desired = sources.evaluate(recorded, running)
    recorded.environment, recorded.credentials = desired.environment, desired.credentials
    return Reading(desired=desired, files=recorded, fingerprint=fingerprint(sources, recorded))


def fingerprint(sources: Sources, files: Recorded) -> str:
    """A hash of every input that was used: files, results of patterns, variables, and where credentials come from."""
    whole = hashlib.sha256(files.fingerprint().encode())
    for name in files.environment:
        whole.update(f"\0{name}={sources.environ.get(name)!r}".encode())
    for name in files.credentials:
        whole.update(f"\0{name} from {sources.credentials.where(name)}".encode())
    return whole.hexdigest()


def fingerprint_again(sources: Sources, files: Recorded) -> str:
    """The fingerprint that the same reads would give now."""
    return fingerprint(sources, files.again(Disk()))


def state_key(state: Path) -> bytes:
    """The key of this state directory for hashing secrets; made at the first use, readable by its owner only."""
    import os
    import secrets

    path = state / "digest.key"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        key = secrets.token_bytes(32)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(key)
        return key

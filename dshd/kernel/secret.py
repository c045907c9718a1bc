"""Secrets in configs: a field type whose value shows nowhere and, where it is a handle, is read anew at each use.

The kernel does not know where secrets are kept. Who validates a config hands in handles through the validation context;
a plugin only ever calls `reveal`.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn, Protocol, runtime_checkable

from pydantic import GetCoreSchemaHandler, PlainSerializer, PlainValidator, ValidationInfo, WithJsonSchema

from .errors import KernelError

HANDLES = "dshd/secrets"
"""Key of the validation context under which a mapping of placeholder texts to handles is looked for."""

MASK = "**********"


class SecretUnavailableError(KernelError, LookupError):
    """A secret cannot be read now: `.name` is missing or unreadable where it was looked for."""

    def __init__(self, name: str, message: str) -> None:
        self.name = name
        super().__init__(message)


@runtime_checkable
class SecretHandle(Protocol):
    """Where a secret is kept. Handles of one place are equal; showing one shows no value."""

    def reveal(self) -> str:
        """The present value. Raises `SecretUnavailableError`."""


class Secret:
    """A text that must not be seen, as a field of a config: `api_key: Secret`.

    Call `reveal` at each use and keep nothing, then a rotated credential binds at the next call. Equal by where it
    comes from: two literals of one text, or two handles of one credential.
    """

    __slots__ = ("_source",)
    _source: str | SecretHandle

    def __init__(self, source: str | SecretHandle) -> None:
        if not isinstance(source, (str, SecretHandle)):
            raise TypeError(f"a secret is made of text or of a handle, not of {type(source).__name__}")
        object.__setattr__(self, "_source", source)

    def reveal(self) -> str:
        """The present value. Raises `SecretUnavailableError` if there is none now."""
        source = self._source
        return source if isinstance(source, str) else source.reveal()

    @property
    def handle(self) -> SecretHandle | None:
        """What reads it, or `None` for a literal."""
        return None if isinstance(self._source, str) else self._source

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        mine, theirs = self._source, other._source
        if isinstance(mine, str) and isinstance(theirs, str):
            return hmac.compare_digest(mine.encode("utf-8", "surrogatepass"), theirs.encode("utf-8", "surrogatepass"))
        return mine == theirs

    def __hash__(self) -> int:
        return hash((Secret, self._source))

    def __repr__(self) -> str:
        return f"Secret({MASK!r})"

    def __str__(self) -> str:
        return MASK

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a secret cannot be changed")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a secret cannot be changed")

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return handler.generate_schema(_FIELD)


def _secret(value: Any, info: ValidationInfo[Any]) -> Secret:
    if isinstance(value, Secret):
        return value
    if isinstance(value, str):
        handles = info.context.get(HANDLES) if isinstance(info.context, Mapping) else None
        return Secret(handles[value] if handles is not None and value in handles else value)
    if isinstance(value, SecretHandle):
        return Secret(value)
    raise ValueError("must be text, so quote it; what was found is not shown, since it is a secret")


_FIELD = Annotated[
    Any,
    PlainValidator(_secret),
    # In Python mode the secret itself is dumped, so that a dump can be validated again; it prints as a mask.
    PlainSerializer(lambda _secret: MASK, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "writeOnly": True, "format": "password"}),
]

"""What contract suites say of what they see: plain asserts, with words, for pytest does not rewrite this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def refused(kind: type[Exception], *words: str) -> Iterator[None]:
    """The block raises an error of this kind that has all these words."""
    error: Exception | None = None
    try:
        yield
    except kind as exc:
        error = exc
    assert error is not None, f"nothing raised {kind.__name__}"
    missing = [word for word in words if word not in str(error)]
    assert not missing, f"{error} does not name {missing}"


def same(found: object, wanted: object) -> None:
    """What came is what is wanted, which the name of the test says; if not, both are shown."""
    assert found == wanted, f"wanted {wanted!r}, but this came: {found!r}"

"""What is wrong with a config beyond its types, each fault at the field it is in."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails

Place = tuple["str | int", ...]


class Mistakes:
    """Collects faults of one model. Raised inside a validator, they stand at their places below it."""

    def __init__(self) -> None:
        self._found: dict[tuple[Place, str], None] = {}

    def add(self, place: Place, words: str) -> None:
        """A fault at a place below the model, such as `("rules", 2, "say")`."""
        self._found[place, words] = None

    def report(self, model: BaseModel) -> None:
        """Raise `ValidationError` if there is any."""
        if self._found:
            raise ValidationError.from_exception_data(
                type(model).__name__,
                [
                    InitErrorDetails(type="value_error", loc=place, input=None, ctx={"error": ValueError(words)})
                    for place, words in self._found
                ],
            )

"""Conditions on a request: their shape in YAML, and whether they hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator

from dshd import Config

from .mistakes import Place
from .question import Question, ToolAnswer
from .reply import Name, Positive, Share


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as exc:
        raise ValueError(f"is no regular expression: {exc}") from None
    return text


Regex: TypeAlias = Annotated[str, AfterValidator(_pattern)]
Groups: TypeAlias = "dict[str, str]"


class Text(Config):
    """What a text must be like; all that is given must hold. Plain text is short for `contains`."""

    contains: str | None = None
    """It occurs in the text; capitals do not matter."""
    matches: Regex | None = None
    """A regular expression (Python's) found in the text; its named groups are values for templates."""


class Result(Config):
    """Which tool result must have come in; `{}` is any. Of several one is enough."""

    tool: Name | None = None
    """The tool, or a pattern such as `read_*`."""
    error: bool | None = None
    """Whether it is an error."""
    text: str | Text | None = None
    """Its text."""


class Number(Config):
    """Which numbers count, from 1; all that is given must hold. A plain number is short for exactly that one."""

    at_least: Positive | None = None
    """This one and later ones."""
    at_most: Positive | None = None
    """This one and earlier ones."""
    every: Positive | None = None
    """The multiples of this: `every: 3` is the 3rd, the 6th and so on."""


@dataclass(frozen=True, slots=True)
class Match:
    """That conditions hold, and what they found."""

    groups: Groups = field(default_factory=dict)
    result: ToolAnswer | None = None


class When(Config):
    """Conditions on a request; all that are given must hold, and without any a rule always does."""

    user: str | Text | None = None
    """What was said last. Alone it asks for words the model has not answered yet; beside `result` for the last ones."""
    result: Result | None = None
    """A tool result that has come in since the model last spoke."""
    system: str | Text | None = None
    """The system prompt."""
    offers: Name | None = None
    """A tool of this name, or pattern such as `read_*`, is on offer."""
    route: Name | None = None
    """The route that is asked, or a pattern."""
    model: Name | None = None
    """The model that is asked, or a pattern."""
    effort: Name | None = None
    """The reasoning effort that is asked for, or a pattern."""
    purpose: Literal["conversation", "compaction", "session-title", "any"] = "conversation"
    """What the call is for; without it a rule answers conversations only, so that no summary uses up a script."""
    turn: Positive | Number | None = None
    """How many times somebody has spoken, as the request shows it; a compaction begins anew."""
    request: Positive | Number | None = None
    """The how-manieth request of its conversation it is, retries included."""
    chance: Share | None = None
    """The share of the requests passing all other conditions that pass; `seed`, session and number pick them."""

    def texts(self) -> Iterator[tuple[Place, str | Text]]:
        """Its conditions on texts, with their places."""
        if self.user is not None:
            yield ("user",), self.user
        if self.result is not None and self.result.text is not None:
            yield ("result", "text"), self.result.text
        if self.system is not None:
            yield ("system",), self.system

    def match(self, question: Question, count: int, luck: Callable[[], float]) -> Match | None:
        """What is found if all conditions hold. `count` is the request's number, `luck` from 0 up to below 1."""
        request = question.request
        if self.purpose not in ("any", request.purpose or "conversation"):
            return None
        names = (self.route, request.provider), (self.model, request.model), (self.effort, request.reasoning_effort)
        if not all(glob is None or fnmatchcase(name or "", glob) for glob, name in names):
            return None
        if self.offers is not None and not any(fnmatchcase(tool.name, self.offers) for tool in request.tools):
            return None
        if not _counts(self.request, lambda: count) or not _counts(self.turn, lambda: question.turn):
            return None
        groups = _found(self.system, request.system or "")
        user = _found(self.user, question.user)
        if groups is None or user is None or (self.user is not None and self.result is None and not question.spoken):
            return None
        result, of_result = _result(self.result, question)
        if of_result is None or (self.chance is not None and luck() >= self.chance):
            return None
        return Match({**groups, **user, **of_result}, result)


def _counts(wanted: int | Number | None, number: Callable[[], int]) -> bool:
    match wanted:
        case None:
            return True
        case int():
            return number() == wanted
        case Number(at_least=least, at_most=most, every=every):
            found = number()
            return (least or 0) <= found <= (found if most is None else most) and found % (every or 1) == 0


def _found(wanted: str | Text | None, text: str) -> Groups | None:
    """The named groups if the text is as wanted."""
    if wanted is None:
        return {}
    condition = Text(contains=wanted) if isinstance(wanted, str) else wanted
    if condition.contains is not None and condition.contains.casefold() not in text.casefold():
        return None
    if condition.matches is None:
        return {}
    match = re.search(condition.matches, text)
    return None if match is None else match.groupdict(default="")


def _result(wanted: Result | None, question: Question) -> tuple[ToolAnswer | None, Groups | None]:
    """The latest tool result that is as wanted, with its named groups."""
    latest = question.results[::-1]
    if wanted is None:
        return (latest[0] if latest else None), {}
    for answer in latest:
        if wanted.tool is not None and not fnmatchcase(answer.tool, wanted.tool):
            continue
        if wanted.error is not None and wanted.error is not answer.error:
            continue
        groups = _found(wanted.text, answer.text)
        if groups is not None:
            return answer, groups
    return None, None

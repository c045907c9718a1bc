"""What pydantic says of arguments, put in words that do not tell of Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import AliasChoices, AliasPath, BaseModel, ValidationError

from dshd.capabilities.values.json import Json

from .arguments import Problem
from .schema import ignores_unknown

_WORDS = {
    "missing": "is missing",
    "missing_argument": "is missing",
    "missing_keyword_only_argument": "is missing",
    "missing_positional_only_argument": "is missing",
    "extra_forbidden": "is not known",
    "unexpected_keyword_argument": "is not known",
    "model_type": "should be an object",
    "model_attributes_type": "should be an object",
    "dataclass_type": "should be an object",
    "dict_type": "should be an object",
    "mapping_type": "should be an object",
    "list_type": "should be an array",
    "tuple_type": "should be an array",
    "set_type": "should be an array",
    "frozen_set_type": "should be an array",
    "iterable_type": "should be an array",
    "none_required": "should be null",
    "string_type": "should be a string",
    "string_unicode": "should be text without half characters (lone surrogates)",
    "bool_type": "should be true or false",
    "bool_parsing": "should be true or false",
    "is_instance_of": "is of another type than expected",
    "is_subclass_of": "is of another type than expected",
    "callable_type": "is of another type than expected",
}
"""By the type of an error; for the others pydantic's own sentence will do."""


def problems_of(error: ValidationError, arguments: Json) -> list[Problem]:
    """What is wrong, each at its place in `arguments`. Of a union that fits in no way, only that."""
    found: dict[tuple[tuple[str | int, ...], str], None] = {}
    details = error.errors(include_url=False, include_input=False)
    located = [_located(detail, arguments) for detail in details]
    branches: dict[tuple[str | int, ...], set[str | int]] = {}
    for _, turns, _ in located:
        for path, branch in turns:
            branches.setdefault(path, set()).add(branch)
    for path, turns, text in located:
        torn = next((where for where, _ in turns if len(branches[where]) > 1), None)
        found[(path, text) if torn is None else (torn, "fits none of the alternatives")] = None
    return [Problem(path, text) for path, text in found]


def _located(
    detail: Any, arguments: Json
) -> tuple[tuple[str | int, ...], list[tuple[tuple[str | int, ...], str | int]], str]:
    """Where an error is within the arguments, the branches of unions on the way there, and what it says.

    Pydantic's location has names of branches, which are names of types, among those of members.
    """
    text = _WORDS.get(detail["type"])
    path: list[str | int] = []
    turns: list[tuple[tuple[str | int, ...], str | int]] = []
    here = arguments
    location: Sequence[str | int] = detail["loc"]
    for index, part in enumerate(location):
        if _leads_on(here, part):
            here = here[part]
        elif text == "is missing" and index == len(location) - 1:
            here = None
        else:
            turns.append((tuple(path), part))
            continue
        path.append(part)
    return tuple(path), turns, _sentence(detail) if text is None else text


def _leads_on(here: Json, part: str | int) -> bool:
    if isinstance(here, Mapping):
        return part in here
    return isinstance(here, (list, tuple)) and isinstance(part, int) and 0 <= part < len(here)


def _sentence(detail: Any) -> str:
    message, context = str(detail["msg"]), detail.get("ctx", {})
    if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        tags = context.get("expected_tags")
        return f"should have {context['discriminator']}{f', which is one of {tags}' if tags else ''}"
    for pydantics, ours in (("Input should be", "should be"), ("Value error, ", ""), ("Assertion failed, ", "")):
        if message.startswith(pydantics):
            return ours + message.removeprefix(pydantics)
    return message[:1].lower() + message[1:]


def dropped(value: object, given: Json, path: tuple[str | int, ...] = ()) -> Iterator[Problem]:
    """The members of `given` that models inside `value`, which was made of it, have silently left out."""
    if isinstance(value, BaseModel) and isinstance(given, Mapping):
        names = {name: _names(value, name) for name in type(value).model_fields}
        if ignores_unknown(type(value)):
            known = {name for several in names.values() for name in several}
            yield from (Problem((*path, name), "is not known") for name in given if name not in known)
        for field, several in names.items():
            for name in several:
                if name in given:
                    yield from dropped(getattr(value, field), given[name], (*path, name))
                    break
    elif isinstance(value, dict) and isinstance(given, Mapping):
        for name in value:
            if isinstance(name, str) and name in given:
                yield from dropped(value[name], given[name], (*path, name))
    elif isinstance(value, (list, tuple)) and isinstance(given, (list, tuple)) and len(value) == len(given):
        for index, part in enumerate(value):
            yield from dropped(part, given[index], (*path, index))


def _names(model: BaseModel, field: str) -> list[str]:
    """The names under which a field of `model` may be given."""
    info = type(model).model_fields[field]
    config = type(model).model_config
    alias = info.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [] if alias is None else [alias]
    found = [str(choice.path[0]) if isinstance(choice, AliasPath) else choice for choice in choices]
    if not found or config.get("populate_by_name") or config.get("validate_by_name"):
        found.append(field)
    return found

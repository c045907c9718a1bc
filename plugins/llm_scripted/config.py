"""The shape of the YAML: routes, rules and scripts, and how replies arrive."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from dshd import Config, Duration

from .mistakes import Mistakes, Place
from .reply import Name, Positive, Reply, Share
from .routes import Model, Retry, Route
from .template import NAMES, groups_of, unknown
from .when import Text, When

RouteName: TypeAlias = Annotated[str, Field(pattern=r"^[^\s/]+$")]


class Rule(Reply):
    """Conditions, and what is answered where they hold: a reply of its own, or the next one of a script."""

    when: When = When()
    """Conditions on the request."""
    times: Positive | None = None
    """How often the rule may answer in one conversation; then it is passed over."""
    script: str | None = None
    """The script whose next reply is given, in place of a reply here."""

    @property
    def plays_script(self) -> bool:
        return self.script is not None

    @model_validator(mode="after")
    def _one_answer(self) -> Rule:
        mistakes = Mistakes()
        given = [name for name in Reply.model_fields if name in self.model_fields_set]
        if self.script is not None and given:
            mistakes.add((given[0],), "belongs to a reply, but this rule plays a script; write it there")
        mistakes.report(self)
        return self


class Script(Config):
    """Replies that are given one after the other, in each conversation by itself."""

    replies: Annotated[tuple[Reply, ...], Field(min_length=1)]
    """The replies in order."""
    at_end: Literal["loop", "stay", "fail", "pass"] = "loop"
    """After the last: begin again, stay at it, fail, or pass on to the next rule."""


class LlmScripted(Config):
    """The config of a row."""

    routes: dict[RouteName, Route] | None = None
    """The routes it answers for; by default one that is named like the row."""
    models: dict[Name, Model] = Field(default_factory=lambda: {"scripted": Model()})
    """The models it lists. Others answer as well, like the pattern that fits them, or like a model without fields."""
    rules: tuple[Rule, ...] = ()
    """Tried in order; the first that holds answers. Where none does, a model answers that repeats what was said."""
    scripts: dict[Name, Script] = Field(default_factory=dict)
    """Sequences of replies, for rules to play."""
    delay: Duration = 0.0
    """How long an answer keeps one waiting, where the reply does not say."""
    pace: Duration = 0.0
    """The pause between two chunks, where the reply does not say."""
    chunk: Positive = 16
    """Characters a chunk, where the reply does not say."""
    jitter: Share = 0
    """The share by which each pause varies."""
    seed: int = 0
    """Of everything random; the same seed, session and number of the request give the same."""
    retry: Retry | None = None
    """The policy for failed calls of its routes; without it that is left to whoever retries."""

    @field_validator("routes")
    @classmethod
    def _some_route(cls, routes: dict[str, Route] | None) -> dict[str, Route] | None:
        if routes is not None and not routes:
            raise ValueError("is empty; name a route, or leave it out for one that is named like the row")
        return routes

    @model_validator(mode="after")
    def _refers_to_what_there_is(self) -> LlmScripted:
        mistakes = Mistakes()
        for index, rule in enumerate(self.rules):
            groups = _groups(rule.when, ("rules", index, "when"), mistakes)
            replies: list[tuple[Place, Reply]] = [(("rules", index), rule)]
            if rule.script in self.scripts:
                played = self.scripts[rule.script].replies
                replies = [(("scripts", rule.script, "replies", number), reply) for number, reply in enumerate(played)]
            elif rule.script is not None:
                known = ", ".join(self.scripts) or "none"
                mistakes.add(("rules", index, "script"), f"there is no script {rule.script!r}; there are: {known}")
            for place, reply in replies:
                for within, text in reply.texts():
                    for name in unknown(text, groups):
                        known = ", ".join([*NAMES, *groups])
                        words = f"{{{{{name}}}}} stands for nothing in rules[{index}]; there are: {known}"
                        mistakes.add((*place, *within), words)
        mistakes.report(self)
        return self


def _groups(when: When, place: Place, mistakes: Mistakes) -> list[str]:
    """The named groups of a rule's regular expressions."""
    found: list[str] = []
    for within, condition in when.texts():
        pattern = condition.matches if isinstance(condition, Text) else None
        for name in () if pattern is None else groups_of(pattern):
            if name in NAMES or name in found:
                mistakes.add((*place, *within, "matches"), f"the name {name!r} of a group is taken; choose another")
            found.append(name)
    return found

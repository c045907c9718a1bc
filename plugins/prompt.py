"""The system prompt, assembled at each step from what plugins contribute. The persona is this row's own section."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio
from pydantic import field_validator

from dshd import Config, Context, Effect, Registry, errors, is_fault, plugin
from dshd.capabilities.llm import ToolSchema
from dshd.capabilities.prompt import (
    ASSEMBLE,
    DYNAMIC,
    PERSONA,
    PERSONA_PRIORITY,
    PROMPT,
    SECTIONS,
    TOOL_PROVIDERS,
    VARIABLES,
    AssembleContext,
    Contribution,
    PromptAssembly,
    PromptError,
    Section,
    Text,
    ToolProvider,
    is_variable,
)
from dshd.capabilities.session import Session
from dshd.capabilities.tools import TOOL_DEFINITIONS, TOOLS
from dshd.capabilities.values import PluginSource, Snapshot, SnapshotSection, UserMessage, user_message

CONTEXT = "Current context, in place of any that was given before:"


class Prompt(Config):
    persona: str | None = None
    """Who the agents are: the section that opens every prompt. A long one is best kept in a file: `${file:…}`."""
    tool_order: tuple[str, ...] = ()
    """The tools that come first, in this order; the others follow by name."""

    @field_validator("tool_order")
    @classmethod
    def _once_each(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"a tool has one place, so name {', '.join(twice)} once")
        return names


@dataclass(frozen=True, slots=True)
class ConsumerPrompt:
    """The service as one consumer sees it."""

    consumer: Context
    tool_order: tuple[str, ...]

    def section(self, name: str, text: Text, *, priority: int | None = None) -> Effect:
        if priority is None:
            priority = PERSONA_PRIORITY if name == PERSONA else 0
        return self.consumer.registry(SECTIONS).add(_named(name), Contribution(text), priority=priority)

    def tools(self, name: str, provider: ToolProvider) -> Effect:
        given: object = provider
        if not callable(given) or inspect.iscoroutinefunction(given):
            raise TypeError(f"tools {name!r} of the prompt come from a plain function, not from {given!r}")
        return self.consumer.registry(TOOL_PROVIDERS).add(_named(name), provider)

    def variable(self, name: str, value: Text) -> Effect:
        if not is_variable(name):
            raise ValueError(f"a prompt variable is named with letters, digits and _ . : / -, not {name!r}")
        return self.consumer.registry(VARIABLES).add(name, Contribution(value))

    def dynamic(self, name: str, text: Text, *, priority: int = 0) -> Effect:
        return self.consumer.registry(DYNAMIC).add(_named(name), Contribution(text), priority=priority)

    async def assemble(self, context: AssembleContext) -> PromptAssembly:
        consumer = self.consumer
        if context.scope is None:
            context = replace(context, scope=consumer.scope)
        elif context.scope is not consumer.scope:
            consumer = consumer.scoped(context.scope)
        with consumer.leased("prompt assembly") as view:
            assembly = await self._collect(view, context)

            async def collected(_context: AssembleContext) -> PromptAssembly:
                return assembly

            answer: Any = await view.waterfall(ASSEMBLE, context, collected)
        if not isinstance(answer, PromptAssembly):
            raise PromptError(
                f"the listeners of {ASSEMBLE.name!r} answered with {type(answer).__name__}, not a PromptAssembly; "
                f"look for one that returns nothing"
            )
        return answer

    async def _collect(self, view: Context, context: AssembleContext) -> PromptAssembly:
        variables = await _texts("variable", view.registry(VARIABLES), context, without=context.variables)
        sections = await _texts("section", view.registry(SECTIONS), context)
        dynamic = await _texts("dynamic context", view.registry(DYNAMIC), context)
        return PromptAssembly(
            context=context,
            sections=tuple(Section(name, text) for name, text in sections if text.strip()),
            tools=self._tools(view, context),
            snapshot=tuple(SnapshotSection(name, text) for name, text in dynamic if text.strip()),
            variables={**dict(variables), **context.variables},
        )

    def _tools(self, view: Context, context: AssembleContext) -> tuple[ToolSchema, ...]:
        found: dict[str, tuple[str, ToolSchema]] = {}
        for row, schema in _offered(view, context):
            if schema.name in found:
                other = found[schema.name][0]
                raise PromptError(
                    f"tool {schema.name!r} is offered twice, by row {other!r} and by row {row!r}; "
                    f"rename one of them, or restrict the agent to one",
                    other,
                    row,
                )
            found[schema.name] = row, schema
        place = {name: index for index, name in enumerate(self.tool_order)}
        ordered = sorted(found, key=lambda name: (place.get(name, len(place)), name))
        return tuple(found[name][1] for name in ordered)

    def snapshot(self, session: Session, assembly: PromptAssembly) -> UserMessage | None:
        latest = session.latest_snapshot(PROMPT.name)
        known: tuple[SnapshotSection, ...] = ()
        if latest is not None and isinstance(latest.source, PluginSource) and isinstance(latest.source.form, Snapshot):
            known = latest.source.form.sections
        if assembly.snapshot == known:
            return None
        parts = [f"## {section.name}\n\n{section.text}" for section in assembly.snapshot] or ["none"]
        return user_message("\n\n".join((CONTEXT, *parts)), PluginSource(PROMPT.name, Snapshot(assembly.snapshot)))


def _named(name: str) -> str:
    if not name.strip():
        raise ValueError(f"what contributes to a prompt has a name, not {name!r}")
    return name


@contextmanager
def _blaming(what: str, row: str) -> Iterator[None]:
    """Whatever the contributor's code in the block does wrong is a `PromptError` that names it."""
    try:
        yield
    except BaseException as exc:
        if not is_fault(exc):
            raise
        cancelled = isinstance(exc, anyio.get_cancelled_exc_class())
        why = "it was cancelled by something it awaited" if cancelled else errors.describe(exc)
        raise PromptError(f"{what} of row {row!r} failed: {why}", row) from exc


async def _texts(
    what: str, registry: Registry[Contribution], context: AssembleContext, without: Collection[str] = ()
) -> list[tuple[str, str]]:
    """What the contributions give, in order, without those that give nothing."""
    found = []
    for name in registry:
        contribution, row = registry.get(name), registry.owner(name)
        if contribution is None or row is None or name in without:
            continue  # or taken back while one before it was awaited
        text: Any = contribution.text
        with _blaming(f"{what} {name!r}", row):
            if callable(text):
                text = text(context)
            if inspect.isawaitable(text):
                text = await text
            if text is not None and not isinstance(text, str):
                raise TypeError(f"it gave {type(text).__name__}, not text")
        if text is not None:
            found.append((name, str.__str__(text)))
    return found


def _offered(view: Context, context: AssembleContext) -> Iterator[tuple[str, ToolSchema]]:
    """Every tool on offer, with the row it comes from: those of the tools service, then those of each provider."""

    def registered() -> Iterable[ToolSchema]:
        tools = view.get(TOOLS)
        return () if tools is None else tools.schemas()

    for schema in _schemas("the service", TOOLS.name, registered):
        yield view.registry(TOOL_DEFINITIONS).owner(schema.name) or TOOLS.name, schema
    providers = view.registry(TOOL_PROVIDERS)
    for name, provider in providers.items():
        row = providers.owner(name) or name
        for schema in _schemas(f"tools {name!r}", row, partial(provider, context)):
            yield row, schema


def _schemas(what: str, row: str, ask: Callable[[], Iterable[Any]]) -> list[ToolSchema]:
    with _blaming(what, row):
        schemas = list(ask())
        for schema in schemas:
            if not isinstance(schema, ToolSchema):
                raise TypeError(f"it gave {type(schema).__name__}, not a ToolSchema")
    return schemas


@plugin("prompt", config=Prompt, provides=[PROMPT])
async def prompt(ctx: Context, config: Prompt) -> None:
    if config.persona is not None:
        ctx.registry(SECTIONS).add(PERSONA, Contribution(config.persona), priority=PERSONA_PRIORITY)
    ctx.provide_each(PROMPT, lambda consumer: ConsumerPrompt(consumer, config.tool_order))

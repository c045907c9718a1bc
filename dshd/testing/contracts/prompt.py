"""The suite for whoever provides `PROMPT`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar

from dshd.capabilities.llm.request import ToolSchema
from dshd.capabilities.prompt import (
    ASSEMBLE,
    PERSONA,
    PROMPT,
    PROMPT_CHANGED,
    AssembleContext,
    PromptAssembly,
    PromptError,
    Section,
    SystemPrompt,
)
from dshd.capabilities.session import Session, SessionHeader, UserMessageAdded
from dshd.capabilities.values import PluginSource, Snapshot, SnapshotSection, session_id
from dshd.kernel.context import Context
from dshd.kernel.effects import Scope
from dshd.kernel.errors import EntryConflictError
from dshd.kernel.events import Next
from dshd.kernel.plugin import Config, Plugin, plugin
from dshd.testing.contracts.expect import refused, same
from dshd.testing.kernel import running

ANYBODY = AssembleContext()


def contributor(name: str, contribute: Callable[[SystemPrompt], object], scope: Scope | None = None) -> Plugin[Config]:
    """A row that contributes to the prompt, for one agent or for all."""

    @plugin(name, inject=[PROMPT])
    async def row(ctx: Context, config: Config) -> None:
        contribute((ctx if scope is None else ctx.scoped(scope))[PROMPT])

    return row


def listener(name: str, listen: Callable[[AssembleContext, Next[PromptAssembly]], Any]) -> Plugin[Config]:
    """A row that listens to `system-prompt/assemble`."""

    @plugin(name)
    async def row(ctx: Context, config: Config) -> None:
        ctx.on(ASSEMBLE, listen)

    return row


def schema(name: str, description: str = "does something") -> ToolSchema:
    return ToolSchema(name, description, {"type": "object"})


async def assembled(ctx: Context, context: AssembleContext = ANYBODY) -> PromptAssembly:
    """What the service assembles for whoever holds `ctx`."""
    prompt = ctx.get(PROMPT)
    assert prompt is not None
    return await prompt.assemble(context)


async def names(ctx: Context, context: AssembleContext = ANYBODY) -> list[str]:
    return [section.name for section in (await assembled(ctx, context)).sections]


class PromptContract:
    """Subclass it in a module whose tests are marked `anyio`; `plugin` provides `PROMPT` and needs no config."""

    plugin: ClassVar[Plugin[Any]]

    @asynccontextmanager
    async def with_rows(self, *rows: Plugin[Config]) -> AsyncIterator[Context]:
        async with running(self.plugin, *rows) as root:
            yield root

    # -- sections and variables

    async def test_sections_stand_by_priority_then_by_row_then_as_they_were_contributed(self) -> None:
        def several(prompt: SystemPrompt) -> None:
            prompt.section("second", "2")
            prompt.section("third", "3")
            prompt.section("last", "9", priority=5)
            prompt.section("first", "1", priority=-5)

        last = contributor("zebra", lambda prompt: prompt.section("fourth", "4"))
        async with self.with_rows(last, contributor("ant", several)) as root:
            same((await assembled(root)).render(), "1\n\n2\n\n3\n\n4\n\n9")

    async def test_a_persona_opens_the_prompt_whoever_it_comes_from(self) -> None:
        early = contributor("ant", lambda prompt: prompt.section("rules", "Be kind.", priority=-10))
        persona = contributor("zebra", lambda prompt: prompt.section(PERSONA, "You are Zoe."))
        async with self.with_rows(early, persona) as root:
            same((await assembled(root)).render(), "You are Zoe.\n\nBe kind.")

    async def test_text_may_come_from_a_function_sync_or_async_asked_at_each_assembly(self) -> None:
        asked: list[str] = []

        async def later(context: AssembleContext) -> str:
            asked.append("later")
            return f"step {len(asked)}"

        def several(prompt: SystemPrompt) -> None:
            prompt.section("soon", lambda context: f"for {context.session_id}")
            prompt.section("later", later)

        async with self.with_rows(contributor("row", several)) as root:
            context = AssembleContext(session_id=session_id("ada"))
            same((await assembled(root, context)).render(), "for ada\n\nstep 1")
            same((await assembled(root, context)).render(), "for ada\n\nstep 2")

    async def test_a_section_without_text_is_left_out(self) -> None:
        def several(prompt: SystemPrompt) -> None:
            prompt.section("none", lambda _: None)
            prompt.section("blank", " \n ")
            prompt.section("some", "some")

        async with self.with_rows(contributor("row", several)) as root:
            same(await names(root), ["some"])

    async def test_variables_are_filled_in_once_and_unknown_names_stay(self) -> None:
        async def host(context: AssembleContext) -> str:
            return "{{model}} on {{host}}"

        def several(prompt: SystemPrompt) -> None:
            prompt.variable("host", host)
            prompt.variable("model", "registered")
            prompt.variable("nothing", lambda _: None)
            prompt.section("text", "{{model}}, {{host}}, {{nobody}}, {{nothing}}, { {model} }, {{{model}}}")

        async with self.with_rows(contributor("row", several)) as root:
            text = (await assembled(root, AssembleContext(variables={"model": "given"}))).render()
            same(text, "given, {{model}} on {{host}}, {{nobody}}, {{nothing}}, { {model} }, {given}")
            assert (await assembled(root)).render().startswith("registered, ")

    async def test_a_variable_that_the_context_gives_is_not_asked_for(self) -> None:
        def broken(context: AssembleContext) -> str:
            raise RuntimeError("must not be asked")

        async with self.with_rows(contributor("row", lambda prompt: prompt.variable("model", broken))) as root:
            await assembled(root, AssembleContext(variables={"model": "given"}))

    async def test_a_name_that_is_taken_or_empty_is_refused_and_so_is_what_gives_no_text(self) -> None:
        async def later(context: AssembleContext) -> Any:
            return [schema("cat")]

        def check(prompt: SystemPrompt) -> None:
            anything: Any = 7
            for contribute in (prompt.section, prompt.dynamic):
                contribute("name", "text")
                with refused(EntryConflictError, "name"):
                    contribute("name", "other")
                with refused(ValueError):
                    contribute("", "text")
                with refused(TypeError, "7"):
                    contribute("number", anything)
            with refused(ValueError, "two words"):
                prompt.variable("two words", "text")
            with refused(TypeError, "7"):
                prompt.variable("number", anything)
            with refused(TypeError, "7"):
                prompt.tools("number", anything)
            with refused(TypeError, "later"):
                prompt.tools("later", later)  # type: ignore[arg-type]

        async with self.with_rows(contributor("row", check)):
            pass

    # -- agents

    async def test_an_agents_section_stands_in_for_the_one_of_the_same_name_for_that_agent_only(self) -> None:
        ada = Scope("ada")

        def for_all(prompt: SystemPrompt) -> None:
            prompt.section(PERSONA, "You are anybody.")
            prompt.section("rules", "Be kind.")

        def for_ada(prompt: SystemPrompt) -> None:
            prompt.section(PERSONA, "You are {{who}}.")
            prompt.variable("who", "Ada")
            prompt.section("hobby", "You like engines.")

        async with self.with_rows(contributor("all", for_all), contributor("own", for_ada, ada)) as root:
            same((await assembled(root)).render(), "You are anybody.\n\nBe kind.")
            own = await assembled(root, AssembleContext(scope=ada))
            same(own.render(), "You are Ada.\n\nBe kind.\n\nYou like engines.")
            same((await assembled(root.scoped(ada))).render(), own.render())
            same(await names(root.scoped(ada), AssembleContext(scope=Scope("bob"))), [PERSONA, "rules"])
            await ada.close()
            same((await assembled(root, AssembleContext(scope=ada))).render(), "You are anybody.\n\nBe kind.")

    async def test_a_section_that_stands_in_for_another_stands_at_its_own_place(self) -> None:
        ada = Scope("ada")
        rows = [contributor(name, lambda prompt, name=name: prompt.section(name, name)) for name in ("a", "b", "c")]  # type: ignore[misc]
        own = contributor("own", lambda prompt: prompt.section("a", "mine", priority=1), ada)
        async with self.with_rows(*rows, own) as root:
            same(await names(root, AssembleContext(scope=ada)), ["b", "c", "a"])
            same(await names(root), ["a", "b", "c"])

    # -- tools

    async def test_tools_come_in_the_order_of_their_names_and_are_asked_for_each_time(self) -> None:
        offered = [schema("write"), schema("ask")]
        provider = contributor("row", lambda prompt: prompt.tools("mine", lambda _: offered))
        async with self.with_rows(
            provider, contributor("two", lambda p: p.tools("own", lambda _: [schema("cat")]))
        ) as root:
            same([tool.name for tool in (await assembled(root)).tools], ["ask", "cat", "write"])
            offered.pop()
            same([tool.name for tool in (await assembled(root)).tools], ["cat", "write"])

    async def test_a_tool_that_two_offer_fails_the_assembly_and_both_are_named(self) -> None:
        one = contributor("one", lambda prompt: prompt.tools("mine", lambda _: [schema("cat")]))
        two = contributor("two", lambda prompt: prompt.tools("yours", lambda _: [schema("cat")]))
        async with self.with_rows(one, two) as root:
            with refused(PromptError, "'cat'", "'one'", "'two'"):
                await assembled(root)

    # -- listeners, faults and changes

    async def test_listeners_may_change_the_assembly_and_what_the_outermost_returns_counts(self) -> None:
        async def inner(context: AssembleContext, next: Next[PromptAssembly]) -> PromptAssembly:
            found = await next()
            return replace(
                found, sections=(*found.sections, Section("added", "{{model}}")), tools=(schema("b"), schema("a"))
            )

        async def outer(context: AssembleContext, next: Next[PromptAssembly]) -> PromptAssembly:
            found = await next()
            return replace(found, variables={**found.variables, "model": "theirs"})

        rows = [listener("outer", outer), listener("second", inner)]
        async with self.with_rows(*rows, contributor("row", lambda prompt: prompt.section("first", "1"))) as root:
            found = await assembled(root, AssembleContext(variables={"model": "given"}))
            same(found.render(), "1\n\ntheirs")
            same([tool.name for tool in found.tools], ["b", "a"])

    async def test_an_answer_that_is_no_assembly_fails_it_with_the_name_of_the_event(self) -> None:
        async def forgetful(context: AssembleContext, next: Next[PromptAssembly]) -> PromptAssembly:
            await next()
            return None  # type: ignore[return-value]

        async with self.with_rows(listener("row", forgetful)) as root:
            with refused(PromptError, "system-prompt/assemble", "NoneType"):
                await assembled(root)

    async def test_listeners_of_an_agent_hear_that_agents_assemblies_only(self) -> None:
        ada, heard = Scope("ada"), list[Scope | None]()

        async def hear(context: AssembleContext, next: Next[PromptAssembly]) -> PromptAssembly:
            heard.append(context.scope)
            return await next()

        @plugin("row")
        async def row(ctx: Context, config: Config) -> None:
            ctx.scoped(ada).on(ASSEMBLE, hear)

        async with self.with_rows(row) as root:
            for context in (ANYBODY, AssembleContext(scope=Scope("bob")), AssembleContext(scope=ada)):
                await assembled(root, context)
            await assembled(root.scoped(ada))
            same(heard, [ada, ada])

    async def test_a_contribution_that_fails_is_named_with_its_row(self) -> None:
        def fail(context: AssembleContext) -> Any:
            raise KeyError("lost")

        async def leave(context: AssembleContext) -> Any:
            raise SystemExit(3)

        async def leave_together(context: AssembleContext) -> Any:
            raise BaseExceptionGroup("together", [SystemExit(3)])

        cases: Mapping[str, Callable[[SystemPrompt], object]] = {
            "KeyError": lambda prompt: prompt.section("mine", fail),
            "SystemExit": lambda prompt: prompt.section("mine", leave),
            "together": lambda prompt: prompt.section("mine", leave_together),
            "int": lambda prompt: prompt.section("mine", lambda _: 7),  # type: ignore[arg-type,return-value]
            "lost": lambda prompt: prompt.variable("mine", fail),
            "'lost'": lambda prompt: prompt.dynamic("mine", fail),
            "KeyError: 'lost'": lambda prompt: prompt.tools("mine", fail),
            "str": lambda prompt: prompt.tools("mine", lambda _: ["cat"]),  # type: ignore[list-item]
            "not iterable": lambda prompt: prompt.tools("mine", lambda _: None),  # type: ignore[arg-type,return-value]
        }
        for word, contribute in cases.items():
            async with self.with_rows(contributor("culprit", contribute)) as root:
                with refused(PromptError, "'mine'", "'culprit'", word):
                    await assembled(root)

    async def test_what_is_contributed_goes_with_its_row_and_a_change_is_told(self) -> None:
        told: list[str] = []
        async with self.with_rows() as root:
            root.on(PROMPT_CHANGED, lambda change: told.append(change.key))

            def contribute(prompt: SystemPrompt) -> None:
                prompt.section("mine", "text")
                prompt.dynamic("state", "text")
                prompt.variable("name", "text")
                prompt.tools("mine", lambda _: [schema("cat")])

            fiber = root.plugin(contributor("row", contribute))
            await fiber.settled()
            same(sorted(told), ["prompt section", "prompt tool provider"])
            await fiber.dispose()
            same(sorted(told), ["prompt section"] * 2 + ["prompt tool provider"] * 2)
            found = await assembled(root)
            same((found.sections, found.tools, found.snapshot, found.variables), ((), (), (), {}))

    async def test_replacing_the_provider_loses_nothing_and_renders_the_same(self) -> None:
        opened: list[str] = []

        def contribute(prompt: SystemPrompt) -> None:
            opened.append("row")
            prompt.section("mine", "for {{who}}")
            prompt.variable("who", "Ada")
            prompt.dynamic("state", "fine")
            prompt.tools("mine", lambda _: [schema("cat")])

        async with running() as root:
            provider = root.plugin(self.plugin)
            await root.plugin(contributor("row", contribute)).settled()
            before = await assembled(root)
            provider = await provider.update({})
            await provider.settled()
            same(await assembled(root), before)
            same(before.render(), "for Ada")
            same(opened, ["row"])

    # -- snapshots

    async def test_dynamic_context_enters_the_history_when_it_has_changed(self) -> None:
        state = {"time": "noon", "place": "{{cwd}}"}

        def contribute(prompt: SystemPrompt) -> None:
            prompt.dynamic("time", lambda _: state["time"])
            prompt.dynamic("place", lambda _: state["place"], priority=-1)
            prompt.dynamic("none", lambda _: None)
            prompt.dynamic("blank", " \n")

        async with self.with_rows(contributor("row", contribute)) as root:
            session = new_session()
            context = AssembleContext(variables={"cwd": "/tmp"})
            form = Snapshot((SnapshotSection("place", "{{cwd}}"), SnapshotSection("time", "noon")))
            same(await enter(root, session, context), PluginSource("prompt", form))
            same((await assembled(root, context)).render(), "")
            same(await enter(root, session, context), None)
            state["time"] = "night"
            assert await enter(root, session, context) is not None
            same(await enter(root, session, context), None)
            text = session.derive_messages()[-1].content[0]
            assert "night" in str(text)
            assert "noon" not in str(text)

    async def test_context_that_is_all_gone_is_said_to_be_gone_once(self) -> None:
        async with self.with_rows() as root:
            session = new_session()
            same(await enter(root, session), None)
            fiber = root.plugin(contributor("row", lambda prompt: prompt.dynamic("time", "noon")))
            await fiber.settled()
            assert await enter(root, session) is not None
            await fiber.dispose()
            same(await enter(root, session), PluginSource("prompt", Snapshot(())))
            assert session.derive_messages()[-1].content != ()
            same(await enter(root, session), None)


def new_session() -> Session:
    return Session(SessionHeader(id=session_id(), created_at=0))


async def enter(ctx: Context, session: Session, context: AssembleContext = ANYBODY) -> object:
    """Assemble, and let the dynamic context enter the history as the agent loop does; the source of its message."""
    prompt = ctx.get(PROMPT)
    assert prompt is not None
    message = prompt.snapshot(session, await prompt.assemble(context))
    if message is None:
        return None
    session.append(UserMessageAdded(message))
    return message.source

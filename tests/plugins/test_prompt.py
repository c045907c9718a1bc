"""The `prompt` row: its contract, its config, and what happens to an assembly while the tree changes."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dshd import (
    Config,
    Context,
    Effect,
    EntryConflictError,
    Fiber,
    Next,
    Plugin,
    RegistryChange,
    Scope,
    picture,
    plugin,
)
from dshd.capabilities.llm import EpochHeader, LlmCallConfig
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
    assemble_context_for,
    fill,
)
from dshd.capabilities.session import RequestHeader, Session, SessionHeader, UserMessageAdded
from dshd.capabilities.tools import TOOLS, ToolCall, ToolDefinition
from dshd.capabilities.values import session_id, text_of
from dshd.testing.contracts.prompt import ANYBODY, PromptContract, assembled, contributor, listener, names, schema
from dshd.testing.kernel import running
from dshd_plugins.prompt import prompt
from dshd_plugins.tools import tools

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class TestPrompt(PromptContract):
    plugin = prompt


class Row(Config):
    text: str = "text"
    priority: int = 0


class Door:
    """A section that says it is being asked, and then waits to be let through."""

    def __init__(self) -> None:
        self.asked, self.open = anyio.Event(), anyio.Event()

    async def __call__(self, context: AssembleContext) -> str:
        self.asked.set()
        await self.open.wait()
        return "waited"


async def while_waiting(root: Context, door: Door, act: Callable[[], Awaitable[object]]) -> PromptAssembly:
    """What an assembly gives during which, with the door's section waiting, something else happens."""
    results: list[PromptAssembly] = []

    async def assemble() -> None:
        results.append(await assembled(root))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(assemble)
            await door.asked.wait()
            await act()
            door.open.set()
    return results[0]


# -- config ------------------------------------------------------------------------------------------------------------


async def test_the_persona_of_the_config_opens_the_prompt_and_an_agents_own_takes_its_place() -> None:
    ada = Scope("ada")
    rules = contributor("a-rules", lambda p: p.section("rules", "Be kind.", priority=-5))
    own = contributor("own", lambda p: p.section(PERSONA, "You are Ada, on {{model}}."), ada)
    async with running((prompt, {"persona": "You serve {{who}}."}), rules, own) as root:
        given = AssembleContext(variables={"who": "us", "model": "m1"})
        assert (await assembled(root, given)).render() == "You serve us.\n\nBe kind."
        assert (await assembled(root, replace(given, scope=ada))).render() == "You are Ada, on m1.\n\nBe kind."


async def test_a_changed_persona_counts_from_the_next_assembly_on() -> None:
    async with running() as root:
        fiber = root.plugin(prompt, {"persona": "old"})
        await fiber.settled()
        assert (await assembled(root)).render() == "old"
        fiber = await fiber.update({"persona": "new"})
        assert (await assembled(root)).render() == "new"
        await fiber.update({})
        assert await names(root) == []


async def test_a_second_persona_for_everybody_is_refused_where_the_config_has_one() -> None:
    other = contributor("other", lambda p: p.section(PERSONA, "mine"))
    async with running((prompt, {"persona": "ours"})) as root:
        fiber = root.plugin(other)
        with pytest.raises(EntryConflictError, match="other"):
            await fiber.settled()
        assert (await assembled(root)).render() == "ours"


async def test_tools_named_in_the_config_come_first_in_that_order_and_the_rest_by_name() -> None:
    offered = [schema(name) for name in ("zap", "ask", "read", "edit")]
    provider = contributor("row", lambda p: p.tools("mine", lambda _: offered))
    async with running((prompt, {"tool_order": ["read", "absent", "edit"]}), provider) as root:
        assert [tool.name for tool in (await assembled(root)).tools] == ["read", "edit", "ask", "zap"]


async def test_a_tool_order_that_names_a_tool_twice_is_refused() -> None:
    async with running() as root:
        with pytest.raises(ValueError, match="name read once"):
            root.plugin(prompt, {"tool_order": ["read", "edit", "read"]})


async def test_the_logged_header_keeps_the_prompt_and_the_tools_in_the_order_they_are_returned_in() -> None:
    async def turn_round(context: AssembleContext, next: Next[PromptAssembly]) -> PromptAssembly:
        found = await next()
        return replace(found, tools=found.tools[::-1])

    offered = contributor("row", lambda p: p.tools("mine", lambda _: [schema("cat"), schema("bat"), schema("ant")]))
    async with running((prompt, {"persona": "You are.", "tool_order": ["cat"]}), offered) as root:
        plain = await assembled(root)
        assert [tool.name for tool in plain.tools] == ["cat", "ant", "bat"]
        await root.plugin(listener("listener", turn_round)).settled()
        found = await assembled(root)
    session = Session(SessionHeader(id=session_id(), created_at=0))
    config = LlmCallConfig(provider="p", model="m")
    session.append(RequestHeader(EpochHeader(config=config, system=found.render(), tools=found.tools), "initial"))
    header = session.request_header
    assert header is not None
    assert (header.system, [tool.name for tool in header.tools]) == ("You are.", ["bat", "ant", "cat"])
    assert EpochHeader.from_json(header.to_json()) == header


# -- what a prompt is assembled for ------------------------------------------------------------------------------------


async def test_a_step_is_assembled_for_the_agent_of_its_session_with_its_workspace() -> None:
    session = Session(SessionHeader(id=session_id("ada"), created_at=0, cwd="/work"))
    context = assemble_context_for(session, provider="p", model=None)
    assert (context.scope, context.session_id) == (session.scope, "ada")
    assert context.variables == {"provider": "p", "cwd": "/work"}
    assert assemble_context_for(session, cwd="/other").variables == {"cwd": "/other"}
    own = contributor("own", lambda p: p.section("mine", "{{cwd}} {{model}}"), session.scope)
    async with running(prompt, own) as root:
        assert (await assembled(root, context)).render() == "/work {{model}}"
        assert (await assembled(root)).render() == ""


def test_contexts_and_assemblies_refuse_what_is_no_text_where_it_is_made() -> None:
    anything: Any = 7
    with pytest.raises(TypeError, match="'n' is int"):
        AssembleContext(variables={"n": anything})
    context = AssembleContext()
    with pytest.raises(TypeError, match="7"):
        Section("name", anything)
    for members in ({"sections": ("text",)}, {"tools": (7,)}, {"snapshot": (Section("a", "b"),)}):
        with pytest.raises(TypeError, match="belongs"):
            PromptAssembly(context=context, **members)
    with pytest.raises(TypeError, match="'n' is int"):
        PromptAssembly(context=context, variables={"n": anything})


@settings(deadline=None)
@given(st.lists(st.sampled_from(["{{a}}", "{{b}}", "{{c}}", "{", "}", "{{", "}}", "a", " ", "\ud800"]), max_size=12))
def test_filling_is_one_pass_that_leaves_everything_but_known_names(parts: list[str]) -> None:
    text = "".join(parts)
    values = {"a": "{{b}}", "b": "}}{{a"}
    found = fill(text, values)
    if "{{a}}" not in text and "{{b}}" not in text:
        assert found == text
    marked = fill(text, {"a": "\x00", "b": "\x01"})  # where names stood, whatever their values
    assert found == marked.replace("\x00", values["a"]).replace("\x01", values["b"])


class Name(str):
    def __str__(self) -> str:
        return "not what it is"


async def test_text_of_a_class_of_its_own_becomes_plain_text() -> None:
    async with running(prompt, contributor("row", lambda p: p.section("mine", lambda _: Name("text")))) as root:
        (section,) = (await assembled(root)).sections
        assert (type(section.text), section.text) == (str, "text")


async def test_a_snapshot_has_the_texts_under_their_names_and_says_so_when_there_is_none() -> None:
    session = Session(SessionHeader(id=session_id(), created_at=0))
    async with running(prompt) as root:
        service = root.get(PROMPT)
        assert service is not None
        fiber = root.plugin(contributor("row", lambda p: (p.dynamic("time", "noon"), p.dynamic("place", "here"))))
        await fiber.settled()
        message = service.snapshot(session, await assembled(root))
        assert message is not None
        session.append(UserMessageAdded(message))
        assert text_of(message.content).endswith("\n\n## time\n\nnoon\n\n## place\n\nhere")
        await fiber.dispose()
        message = service.snapshot(session, await assembled(root))
        assert message is not None
        assert text_of(message.content).endswith("\n\nnone")


# -- the tools service -------------------------------------------------------------------------------------------------


def definition(name: str) -> ToolDefinition:
    async def run(call: ToolCall) -> str:
        return name

    return ToolDefinition(name=name, description="does something", parameters={"type": "object"}, execute=run)


def tool_row(name: str, *offered: str, scope: Scope | None = None) -> Plugin[Config]:
    @plugin(name, inject=[TOOLS])
    async def row(ctx: Context, config: Config) -> None:
        for each in offered:
            (ctx if scope is None else ctx.scoped(scope))[TOOLS].register(definition(each))

    return row


async def tool_names(ctx: Context, context: AssembleContext = ANYBODY) -> list[str]:
    return [tool.name for tool in (await assembled(ctx, context)).tools]


async def test_registered_tools_are_in_the_assembly_beside_those_of_providers() -> None:
    provider = contributor("provider", lambda p: p.tools("mine", lambda _: [schema("bee")]))
    async with running((prompt, {"tool_order": ["cat"]}), tools, tool_row("row", "ant", "cat"), provider) as root:
        assert await tool_names(root) == ["cat", "ant", "bee"]
        assert (await assembled(root)).tools[1] == definition("ant").schema


async def test_without_the_tools_service_only_providers_are_asked() -> None:
    provider = contributor("provider", lambda p: p.tools("mine", lambda _: [schema("bee")]))
    async with running(prompt, provider) as root:
        assert await tool_names(root) == ["bee"]
        await root.plugin(tools).settled()
        await root.plugin(tool_row("row", "ant")).settled()
        assert await tool_names(root) == ["ant", "bee"]


async def test_the_assembly_has_the_tools_that_the_agent_may_see() -> None:
    ada = Scope("ada")

    @plugin("policy", inject=[TOOLS])
    async def policy(ctx: Context, config: Config) -> None:
        ctx.scoped(ada)[TOOLS].restrict(allow=["c*"])

    rows = [tool_row("row", "ant", "cat"), tool_row("own", "dog", scope=ada), policy]
    async with running(prompt, tools, *rows) as root:
        assert await tool_names(root, AssembleContext(scope=ada)) == ["cat", "dog"]
        assert await tool_names(root.scoped(ada)) == ["cat", "dog"]
        assert await tool_names(root) == ["ant", "cat"]


async def test_a_registered_tool_that_a_provider_offers_too_fails_the_assembly_with_both_rows() -> None:
    provider = contributor("provider", lambda p: p.tools("mine", lambda _: [schema("ant")]))
    async with running(prompt, tools, tool_row("row", "ant"), provider) as root:
        with pytest.raises(PromptError, match="'ant' is offered twice, by row 'row' and by row 'provider'") as caught:
            await assembled(root)
        assert caught.value.rows == ("row", "provider")


async def test_an_assembly_that_waits_has_the_tools_it_began_with() -> None:
    door = Door()
    async with running(prompt, tools, contributor("door", lambda p: p.section("door", door))) as root:
        old = root.plugin(tool_row("row", "old"))
        await old.settled()

        async def change() -> None:
            async with root.kernel.stage() as stage:
                stage.retire(old)
                root.plugin(tool_row("row", "new"), id="other", stage=stage)
                await stage.settled()
                stage.commit()

        found = await while_waiting(root, door, change)
        assert [tool.name for tool in found.tools] == ["old"]
        assert await tool_names(root) == ["new"]


async def test_an_assembly_in_a_realm_has_the_tools_of_that_realm() -> None:
    async with running(prompt, tools, tool_row("row", "ant")) as root:
        room = root.isolate(TOOLS)
        await room.plugin(tools, id="inner tools").settled()
        await room.plugin(tool_row("row", "cat"), id="inner row").settled()
        assert (await tool_names(root), await tool_names(room)) == (["ant"], ["cat"])


# -- byte-identical ----------------------------------------------------------------------------------------------------


async def test_the_prompt_is_the_same_bytes_whatever_the_order_of_mounting() -> None:
    def contribute(name: str, p: SystemPrompt) -> None:
        p.section(f"{name} 1", f"{name} one on {{{{host}}}}", priority=len(name) % 2)
        p.section(f"{name} 2", f"{name} two")
        p.variable(f"{name}", name)
        p.dynamic(name, f"state of {name}")
        p.tools(name, lambda _: [schema(f"{name}-b"), schema(f"{name}-a")])

    rows = [contributor(name, partial(contribute, name)) for name in ("ox", "cat", "hen", "dodo")]
    found = []
    for seed in range(6):
        order: list[Plugin[Any]] = [prompt, *rows]
        random.Random(seed).shuffle(order)
        async with running() as root:
            for fiber in [root.plugin(each) for each in order]:
                await fiber.settled()
            context = AssembleContext(variables={"host": "h"})
            first, second = await assembled(root, context), await assembled(root, context)
            assert (first.render(), first) == (second.render(), second)
            found.append(repr((first.render(), first.tools, first.snapshot)))
    assert len(set(found)) == 1


async def test_after_any_chain_of_reloads_the_order_is_that_of_a_cold_start() -> None:
    @plugin("row", config=Row, inject=[PROMPT])
    async def row(ctx: Context, config: Row) -> None:
        name = ctx.fiber.path
        ctx[PROMPT].section(name, f"{name}: {config.text}", priority=config.priority)
        ctx[PROMPT].section(f"{name} again", "again")
        ctx[PROMPT].dynamic(name, config.text, priority=-config.priority)
        ctx[PROMPT].tools(name, lambda _: [schema(name)])

    async def cold(configs: dict[str, dict[str, Any]], persona: str) -> PromptAssembly:
        async with running() as root:
            mounted = [root.plugin(row, config, id=id) for id, config in sorted(configs.items())]
            for fiber in (*mounted, root.plugin(prompt, {"persona": persona})):
                await fiber.settled()
            return await assembled(root)

    for seed in range(8):
        chance = random.Random(seed)
        configs: dict[str, dict[str, Any]] = {}
        fibers: dict[str, Fiber] = {}
        async with running() as root:
            persona = "persona 0"
            provider = root.plugin(prompt, {"persona": persona})
            await provider.settled()
            for step in range(20):
                id, config = chance.choice("abcde"), {"text": f"step {step}", "priority": chance.randint(-1, 1)}
                if chance.random() < 0.2:
                    persona = f"persona {step}"
                    provider = await provider.update({"persona": persona})
                elif id not in fibers:
                    fibers[id], configs[id] = root.plugin(row, config, id=id), config
                    await fibers[id].settled()
                elif chance.random() < 0.6:
                    fibers[id], configs[id] = await fibers[id].update(config), config
                else:
                    await fibers.pop(id).dispose()
                    del configs[id]
            live = await assembled(root)
        assert live == await cold(configs, persona), f"seed {seed}"


async def test_a_change_elsewhere_tells_nobody_that_the_prompt_has_changed() -> None:
    told: list[object] = []
    async with running(prompt, contributor("row", lambda p: p.section("mine", "text"))) as root:
        root.on(PROMPT_CHANGED, told.append)
        other = root.plugin(listener("other", lambda context, next: next()))
        await other.settled()
        await other.dispose()
        await assembled(root)
        assert told == []


async def test_a_commit_that_replaces_a_contributor_is_told_once() -> None:
    @plugin("row", config=Row, inject=[PROMPT])
    async def row(ctx: Context, config: Row) -> None:
        for name in ("one", "two"):
            ctx[PROMPT].section(name, config.text)

    told: list[RegistryChange] = []
    async with running(prompt) as root:
        fiber = root.plugin(row)
        await fiber.settled()
        root.on(PROMPT_CHANGED, told.append)
        await fiber.update({"text": "other"})
        assert [change.key for change in told] == ["prompt section"]


async def test_a_contribution_is_an_effect_that_can_be_taken_back_early() -> None:
    effects: list[Effect] = []

    def contribute(p: SystemPrompt) -> None:
        effects.extend([p.section("mine", "{{who}}"), p.variable("who", "Ada"), p.dynamic("state", "fine")])
        effects.append(p.tools("mine", lambda _: [schema("cat")]))

    async with running(prompt, contributor("row", contribute)) as root:
        before = await assembled(root)
        assert (before.render(), len(before.snapshot), len(before.tools)) == ("Ada", 1, 1)
        for effect in effects:
            await effect.dispose()
        after = await assembled(root)
        assert (after.sections, after.variables, after.snapshot, after.tools) == ((), {}, (), ())


# -- while the tree changes --------------------------------------------------------------------------------------------


async def test_an_assembly_that_waits_ends_with_the_contributors_it_began_with() -> None:
    door, closed = Door(), []

    @plugin("row", config=Row, inject=[PROMPT])
    async def row(ctx: Context, config: Row) -> Any:
        ctx[PROMPT].section("mine", lambda _: f"{config.text} {'closed' if config.text in closed else 'open'}")
        ctx[PROMPT].dynamic("mine", config.text)
        yield
        closed.append(config.text)

    async with running(prompt, contributor("door", lambda p: p.section("a door", door, priority=-1))) as root:
        fiber = root.plugin(row, {"text": "old"})
        await fiber.settled()

        async def change() -> None:
            await fiber.update({"text": "new"})
            late = root.plugin(contributor("late", lambda p: p.section("late", "late")))
            await late.settled()
            assert closed == []

        found = await while_waiting(root, door, change)
        assert found.render() == "waited\n\nold open"
        assert [section.text for section in found.snapshot] == ["old"]
        with anyio.fail_after(5):
            await fiber.closing()
        assert closed == ["old"]
        assert (await assembled(root)).render() == "waited\n\nlate\n\nnew open"


async def test_an_assembly_that_waits_asks_the_listeners_it_began_with() -> None:
    door = Door()

    @plugin("listener", config=Row)
    async def added(ctx: Context, config: Row) -> None:
        async def add(context: AssembleContext, next: Next[PromptAssembly]) -> PromptAssembly:
            found = await next()
            return replace(found, sections=(*found.sections, Section("added", config.text)))

        ctx.on(ASSEMBLE, add)

    async with running(prompt, contributor("door", lambda p: p.section("door", door))) as root:
        fiber = root.plugin(added, {"text": "old"})
        await fiber.settled()
        found = await while_waiting(root, door, lambda: fiber.update({"text": "new"}))
        assert found.render() == "waited\n\nold"
        assert (await assembled(root)).render() == "waited\n\nnew"


async def test_an_assembly_goes_on_while_its_own_row_is_replaced() -> None:
    door = Door()

    def contribute(p: SystemPrompt) -> None:
        p.section("door", door)
        p.tools("mine", lambda _: [schema("ant"), schema("cat")])

    async with running(contributor("row", contribute)) as root:
        provider = root.plugin(prompt, {"persona": "old", "tool_order": ["cat"]})
        await provider.settled()
        await root.plugin(contributor("late", lambda p: None)).settled()

        async def change() -> None:
            await provider.update({"persona": "new"})

        found = await while_waiting(root, door, change)
        assert (found.render(), [tool.name for tool in found.tools]) == ("old\n\nwaited", ["cat", "ant"])
        found = await assembled(root)
        assert (found.render(), [tool.name for tool in found.tools]) == ("new\n\nwaited", ["ant", "cat"])


async def test_an_assembly_within_a_lease_sees_what_was_leased() -> None:
    async with running() as root:
        provider = root.plugin(prompt, {"persona": "old"})
        row = root.plugin(contributor("row", lambda p: p.section("mine", "text")))
        await row.settled()
        with root.leased("step") as view:
            provider = await provider.update({"persona": "new"})
            assert (await assembled(view)).render() == "old\n\ntext"
            assert (await assembled(root)).render() == "new\n\ntext"


async def test_what_its_owner_takes_back_while_an_assembly_waits_is_left_out() -> None:
    door, ada = Door(), Scope("ada")

    def broken(context: AssembleContext) -> str:
        raise RuntimeError("asked after its end")

    rows = [
        contributor("door", lambda p: p.section("a door", door, priority=-1)),
        contributor("own", lambda p: p.section("mine", broken), ada),
    ]
    async with running(prompt, *rows) as root:
        fiber = root.plugin(contributor("row", lambda p: p.section("gone", broken)))
        await fiber.settled()

        async def change() -> None:
            await fiber.dispose()
            await ada.close()

        found = await while_waiting(root.scoped(ada), door, change)
        assert [section.name for section in found.sections] == ["a door"]


async def test_an_assembly_that_is_cancelled_lets_go_of_its_lease() -> None:
    door = Door()
    async with running(prompt, contributor("row", lambda p: p.section("door", door))) as root:
        with anyio.fail_after(5), anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(assembled, root)
                await door.asked.wait()
                assert [lease.who for lease in picture(root).leases] == ["prompt assembly"]
                scope.cancel()
        assert picture(root).leases == ()


async def test_a_cancellation_of_something_a_section_awaits_is_that_sections_fault() -> None:
    async def strayed(context: AssembleContext) -> str:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        return str(await future)

    async with running(prompt, contributor("culprit", lambda p: p.section("mine", strayed))) as root:
        with pytest.raises(PromptError, match="'mine' of row 'culprit' failed: it was cancelled") as caught:
            await assembled(root)
        assert caught.value.rows == ("culprit",)
        assert picture(root).leases == ()


async def test_an_assembly_that_is_dropped_while_it_waits_lets_go_of_its_lease() -> None:
    door = Door()
    async with running(prompt, contributor("row", lambda p: p.section("door", door))) as root:
        assembling = assembled(root)
        assembling.send(None)
        assert [lease.who for lease in picture(root).leases] == ["prompt assembly"]
        assembling.close()
        assert picture(root).leases == ()


# -- realms ------------------------------------------------------------------------------------------------------------


async def test_a_prompt_in_a_realm_has_the_contributions_made_there_only() -> None:
    async with running((prompt, {"persona": "outside"})) as root:
        room = root.isolate(PROMPT)
        inside = room.plugin(prompt, {"persona": "inside"}, id="inner")
        await inside.settled()

        def contribute(name: str, p: SystemPrompt) -> None:
            p.section("mine", "{{who}}")
            p.variable("who", name)
            p.dynamic("state", name)
            p.tools(name, lambda _: [schema(name)])

        for where, name in ((root, "out"), (room, "in")):
            await where.plugin(contributor(name, partial(contribute, name))).settled()
        out, own = await assembled(root), await assembled(room)
        for found, text, name in ((out, "outside\n\nout", "out"), (own, "inside\n\nin", "in")):
            assert (found.render(), [tool.name for tool in found.tools]) == (text, [name])
            assert [section.text for section in found.snapshot] == [name]

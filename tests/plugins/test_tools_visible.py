"""Which tools a scope sees, what it is told of those it does not, and how they reach its prompt."""

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from dshd import Context, Scope
from dshd.capabilities.prompt import PROMPT, AssembleContext
from dshd.capabilities.tools import (
    TOOLS,
    Restriction,
    ToolCode,
    ToolDefinition,
    permitted,
    tool,
)
from dshd.kernel.errors import PluginDefinitionError
from dshd.testing.contracts.tools import a_call, around, echo, failed, offering, results, succeeded, tools_of
from dshd.testing.kernel import running
from dshd_plugins.prompt import prompt
from dshd_plugins.tools import tools

pytestmark = pytest.mark.anyio


def named(*names: str) -> list[ToolDefinition]:
    return [replace(echo, name=name) for name in names]


def names(ctx: Context, scope: Scope | None = None) -> list[str]:
    return sorted(schema.name for schema in tools_of(ctx, scope).schemas())


# -- restrictions


@pytest.mark.parametrize(
    ("restrictions", "seen"),
    [
        ([], []),
        ([Restriction(deny=("shell",))], []),
        ([Restriction(allow=())], []),
        ([Restriction(allow=("*",))], ["read_file", "read_url", "shell"]),
        ([Restriction(allow=("read_*",))], ["read_file", "read_url"]),
        ([Restriction(allow=("READ_*",))], []),
        ([Restriction(allow=("*",), deny=("read_*",))], ["shell"]),
        ([Restriction(allow=("*",)), Restriction(deny=("shell",))], ["read_file", "read_url"]),
        ([Restriction(allow=("read_*",)), Restriction(allow=("*_file", "shell"))], ["read_file"]),
        ([Restriction(allow=("shell",)), Restriction(allow=("read_*",))], []),
    ],
)
def test_restrictions_intersect_and_one_of_them_has_to_name_the_tool(
    restrictions: list[Restriction], seen: list[str]
) -> None:
    assert [name for name in ("read_file", "read_url", "shell") if permitted(name, restrictions)] == seen


PATTERNS = st.lists(st.sampled_from(["*", "read_*", "shell", "*_file", "nothing"]), max_size=3).map(tuple)
RESTRICTIONS = st.builds(Restriction, st.none() | PATTERNS, PATTERNS)


@given(st.lists(RESTRICTIONS, max_size=4), RESTRICTIONS, st.sampled_from(["read_file", "shell"]))
def test_one_more_restriction_never_shows_what_an_allowing_one_has_hidden(
    restrictions: list[Restriction], more: Restriction, name: str
) -> None:
    some_allow = any(each.allow is not None for each in restrictions)
    if some_allow and not permitted(name, restrictions):
        assert not permitted(name, [*restrictions, more])
    if not more.permits(name):
        assert not permitted(name, [*restrictions, more])


async def test_a_denial_without_a_scope_counts_for_every_agent_and_an_allowance_is_refused() -> None:
    ada, bob = Scope("ada"), Scope("bob")
    async with running(tools, offering("row", *named("echo", "shell"))) as root:
        for scope in (ada, bob):
            tools_of(root, scope).restrict(allow=["*"])
        denial = tools_of(root).restrict(deny=["shell"])
        assert names(root, ada) == names(root, bob) == ["echo"]
        assert names(root) == ["echo", "shell"]
        await denial.dispose()
        assert names(root, ada) == ["echo", "shell"]
        with pytest.raises(ValueError, match="for that agent"):
            tools_of(root).restrict(allow=["shell"])


@pytest.mark.parametrize("patterns", ["shell", [1]])
async def test_patterns_are_a_list_of_text(patterns: Any) -> None:
    async with running(tools) as root:
        service = tools_of(root, Scope("ada"))
        for arguments in ({"allow": patterns}, {"deny": patterns}):
            with pytest.raises(ValueError, match="list of patterns"):
                service.restrict(**arguments)


async def test_what_a_scope_registers_itself_no_restriction_hides() -> None:
    ada = Scope("ada")
    async with running(tools, offering("all", *named("echo")), offering("own", *named("echo"), scope=ada)) as root:
        tools_of(root, ada).restrict(allow=[], deny=["*"])
        assert names(root, ada) == ["echo"]
        succeeded(await tools_of(root, ada).execute(a_call("echo", {"text": "own"})), "own")


async def test_one_definition_registered_for_all_and_for_one_is_that_ones_own() -> None:
    ada, bob = Scope("ada"), Scope("bob")
    definition = named("echo")
    async with running(tools, offering("all", *definition), offering("own", *definition, scope=ada)) as root:
        assert (names(root, ada), names(root, bob), names(root)) == (["echo"], [], ["echo"])


async def test_tools_and_restrictions_of_a_scope_end_with_it() -> None:
    ada = Scope("ada")

    def set_up(ctx: Context) -> None:
        ctx.scoped(ada)[TOOLS].restrict(allow=["echo"])

    async with running(tools, offering("own", *named("mine"), scope=ada), around("set up", set_up)) as root:
        await root.plugin(offering("all", *named("echo"))).settled()
        assert names(root, ada) == ["echo", "mine"]
        await ada.close()
        assert names(root, ada) == []


async def test_isolated_rows_have_tools_of_their_own() -> None:
    async with running() as root:
        room = root.isolate(TOOLS)
        for ctx, name in ((root, "outside"), (room, "inside")):
            await ctx.plugin(tools, id=f"tools {name}").settled()
            await ctx.plugin(offering(f"row {name}", *named(name))).settled()
        assert (names(root), names(room)) == (["outside"], ["inside"])
        ada = Scope("ada")
        tools_of(room, ada).restrict(allow=["*"])
        assert (names(root, ada), names(room, ada)) == ([], ["inside"])


async def test_only_definitions_are_registered() -> None:
    async with running(tools) as root:
        with pytest.raises(PluginDefinitionError, match="@tool"):
            tools_of(root).register(lambda: None)  # type: ignore[arg-type]


# -- what is told of the others


async def told(wanted: str, available: Sequence[str]) -> str:
    async with running(tools, offering("row", *named(*available))) as root:
        return failed(await tools_of(root).execute(a_call(wanted)), ToolCode.UNKNOWN_TOOL).message


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("shel", "did you mean shell? "),
        ("SHELL", "did you mean shell? "),
        ("functions.shell", "did you mean shell? "),
        ("default_api:read_file", "did you mean read_file? "),
        ("read_files", "did you mean read_file or read_url? "),
        ("zzz", "there is no tool 'zzz'. Available: read_file, read_url, shell"),
        ("", "there is no tool ''. Available"),
        ("a\ud800\n", "there is no tool 'a\\ud800\\n'. Available"),
    ],
)
async def test_an_unknown_name_is_answered_with_near_ones_and_with_what_exists(wanted: str, words: str) -> None:
    message = await told(wanted, ["shell", "read_file", "read_url"])
    assert words in message
    assert message.endswith("Available: read_file, read_url, shell")


async def test_of_many_tools_a_bounded_number_is_named() -> None:
    message = await told("x" * 10_000, [f"a_tool_with_a_long_name_{number}" for number in range(500)])
    assert message.endswith(" and 460 more")
    assert len(message) < 2000


async def test_where_there_are_none_that_is_said() -> None:
    assert await told("shell", []) == "there is no tool 'shell'; no tools are available"


async def test_near_names_are_looked_for_among_those_that_may_be_seen() -> None:
    ada = Scope("ada")
    async with running(tools, offering("row", *named("shell", "read"))) as root:
        tools_of(root, ada).restrict(allow=["read"])
        heard = results(root)
        for name in ("shell", "shel", "shelll"):
            outcome = failed(await tools_of(root, ada).execute(a_call(name)), ToolCode.UNKNOWN_TOOL)
            assert outcome.message == f"there is no tool {name!r}. Available: read"
        assert len(heard) == 3


async def test_a_tool_nobody_may_see_is_classified_like_one_that_is_not_there() -> None:
    ada = Scope("ada")

    @tool(mode="parallel")
    async def free() -> None:
        """Free."""

    async with running(tools, offering("row", free)) as root:
        assert tools_of(root, ada).classify(a_call("free")) == "exclusive"
        assert tools_of(root).classify(a_call("free", scope=ada)) == "exclusive"
        tools_of(root, ada).restrict(allow=["free"])
        assert tools_of(root, ada).classify(a_call("free")) == "parallel"


async def test_a_call_under_a_lease_that_has_ended_is_exclusive() -> None:
    @tool(mode="parallel")
    async def free() -> None:
        """Free."""

    async with running(tools, offering("row", free)) as root:
        with root.leased("step") as view:
            service = tools_of(view)
            assert service.classify(a_call("free")) == "parallel"
        assert service.classify(a_call("free")) == "exclusive"


async def test_a_classifier_at_fault_makes_a_call_exclusive_and_is_reported() -> None:
    async def asynchronous(arguments: Any) -> str:
        return "parallel"

    def leaving(arguments: Any) -> Any:
        raise SystemExit

    definitions = [replace(named(name)[0], mode=mode) for name, mode in (("a", asynchronous), ("b", leaving))]  # type: ignore[arg-type]
    with capture_logs() as log:
        async with running(tools, offering("row", *definitions)) as root:
            assert [tools_of(root).classify(a_call(name)) for name in ("a", "b")] == ["exclusive", "exclusive"]
    gc.collect()  # a coroutine that was not awaited would warn now
    assert [(line["tool"], line["of"]) for line in log] == [("b", "row")]


# -- the prompt


async def test_the_tools_a_scope_may_see_are_in_its_prompt_and_no_others() -> None:
    ada = Scope("ada")

    async def offered(root: Context, scope: Scope | None = None) -> list[str]:
        service = root.get(PROMPT)
        assert service is not None
        return [schema.name for schema in (await service.assemble(AssembleContext(scope=scope))).tools]

    async with running(tools, prompt, offering("row", *named("zebra", "ant", "bee"))) as root:
        assert await offered(root) == ["ant", "bee", "zebra"]
        assert await offered(root, ada) == []
        tools_of(root, ada).restrict(allow=["zebra", "ant"])
        assert await offered(root, ada) == ["ant", "zebra"]


async def test_a_step_offers_what_its_lease_sees_and_not_what_came_after_it() -> None:
    async with running(tools, prompt, offering("row", *named("before"))) as root:
        with root.leased("step") as view:
            await root.plugin(offering("late", *named("after"))).settled()
            service = view.get(PROMPT)
            assert service is not None
            assert [schema.name for schema in (await service.assemble(AssembleContext())).tools] == ["before"]
            failed(await tools_of(view).execute(a_call("after")), ToolCode.UNKNOWN_TOOL)
        assert names(root) == ["after", "before"]

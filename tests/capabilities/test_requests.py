"""Requests, call configs, headers and what adapters say of their models: values that nobody can change afterwards."""

import copy
import json
import weakref
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dshd.capabilities.llm import (
    ConfigurableProvider,
    DiscoveredModel,
    EpochHeader,
    FailureCode,
    GenerateOptions,
    LlmCallConfig,
    ModelContext,
    ModelDiscoveryRequest,
    ModelInfo,
    ModelReasoning,
    ProviderInfo,
    Purpose,
    ReasoningEffort,
    ResolvedModel,
    RetryPolicy,
    ToolSchema,
)
from dshd.capabilities.llm.counts import LARGEST_SAFE
from dshd.capabilities.values import (
    CallId,
    LossyValueError,
    MalformedValueError,
    Message,
    ModelSource,
    ReasoningBlock,
    ReasoningEffortId,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSource,
    message_from_json,
    message_id,
    session_id,
    user_message,
)
from dshd.kernel.effects import Scope
from dshd.kernel.signal import Aborter

HIGH = ReasoningEffortId("high")
READ = ToolSchema("read", "Read a file.", {"type": "object", "properties": {"path": {"enum": ["a", "b"]}}})
LIST = ToolSchema("list", "List files.", {"type": "object"})


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def request(**changes: Any) -> GenerateOptions:
    return GenerateOptions(**{"provider": "mine", "model": "m", "messages": [user_message("hi")], **changes})


def in_it(request: GenerateOptions) -> dict[str, Any]:
    """Every field of a request, for two of them are never equal."""
    return {each.name: getattr(request, each.name) for each in fields(request)}


# -- strategies

Characters = st.characters(exclude_categories=()) | st.sampled_from("\ud83c\udf0d")  # halves of 🌍 too
Words = st.text(alphabet=Characters, min_size=1, max_size=8)
Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | Words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(Words, inner, max_size=3),
    max_leaves=6,
)
Caps = st.integers(1, LARGEST_SAFE)
Configs = st.builds(
    LlmCallConfig,
    provider=st.none() | Words,
    model=st.none() | Words,
    reasoning_effort=st.none() | Words.map(ReasoningEffortId),
    temperature=st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-5, 5),
    max_tokens=st.none() | Caps,
    stop=st.none() | st.lists(Words, max_size=3).map(tuple),
)
Tools = st.builds(ToolSchema, Words, st.just("") | Words, st.dictionaries(Words, Json, max_size=3))
Headers = st.builds(
    EpochHeader,
    config=Configs,
    adapter_defaults=st.frozensets(st.sampled_from(["reasoning_effort", "max_tokens"])),
    intercepted=st.fixed_dictionaries(
        {}, optional={"max_tokens": st.none() | Caps, "model": st.none() | Words, "later": Json}
    ),
    seeds=st.dictionaries(Words, Json, max_size=2),
    system=st.none() | Words,
    tools=st.lists(Tools, max_size=3).map(tuple),
)
Blocks = st.one_of(
    st.builds(TextBlock, Words), st.builds(ReasoningBlock, Words),
    st.builds(ToolCallBlock, Words.map(CallId), Words, Words),
)  # fmt: skip
Results = st.builds(
    ToolResultBlock, Words.map(CallId), st.lists(Blocks, max_size=2).map(tuple), st.none() | st.booleans()
)
Histories = st.lists(
    st.one_of(
        Words.map(user_message),
        st.builds(
            lambda content, state: Message(message_id(), "assistant", content, ModelSource("mine", "m", state)),
            st.lists(Blocks, max_size=3).map(tuple),
            Json,
        ),
        Results.map(lambda block: Message(message_id(), "user", (block,), ToolSource("read"))),
    ),
    max_size=4,
)


# -- the call config


@given(Configs)
def test_a_call_config_comes_back_from_its_json_as_it_was(config: LlmCallConfig) -> None:
    written = config.to_json()
    assert LlmCallConfig.from_json(through_json(written)) == config
    assert None not in written.values()


def test_the_names_of_a_call_config_are_those_of_a_request() -> None:
    names = {each.name for each in fields(LlmCallConfig)}
    assert names == {"provider", "model", "reasoning_effort", "temperature", "max_tokens", "stop"}
    assert names < {each.name for each in fields(GenerateOptions)}


def test_a_proposal_may_lack_everything() -> None:
    assert LlmCallConfig().to_json() == {}
    assert LlmCallConfig.from_json({}) == LlmCallConfig()


def test_no_stop_strings_are_the_same_as_none() -> None:
    assert LlmCallConfig(stop=()) == LlmCallConfig(stop=None) == LlmCallConfig.from_json({"stop": []})
    assert request(stop=[]).stop is None
    assert request(system="").system is None


def test_a_request_needs_a_provider_and_a_model() -> None:
    for name in ("provider", "model"):
        with pytest.raises(MalformedValueError, match=name):
            request(**{name: None})


def test_a_temperature_is_the_same_number_before_and_after_the_log() -> None:
    assert repr(LlmCallConfig(temperature=1)) == repr(LlmCallConfig.from_json(through_json({"temperature": 1})))


@pytest.mark.parametrize(
    "cap", [0, -1, 1.0, 10.5, True, "10", float("nan"), 2**53, pytest.param(10**5000, id="huge"), b"1"]
)
def test_a_cap_is_a_whole_number_above_zero_that_every_reader_reads(cap: Any) -> None:
    with pytest.raises(MalformedValueError, match="max_tokens"):
        LlmCallConfig(max_tokens=cap)
    with pytest.raises(ValueError, match="max_tokens"):
        request(max_tokens=cap)
    with pytest.raises(ValueError, match="default_max_tokens"):
        ResolvedModel(provider="p", id="m", name="m", default_max_tokens=cap)
    with pytest.raises(ValueError, match="context_window"):
        ModelContext(cap)


def test_the_largest_cap_is_the_largest_safe_integer() -> None:
    assert LlmCallConfig(max_tokens=2**53 - 1).max_tokens == 9007199254740991
    assert LlmCallConfig(max_tokens=1).max_tokens == 1


@pytest.mark.parametrize("name", ["provider", "model", "reasoning_effort"])
@pytest.mark.parametrize("value", ["", 5, b"x"])
def test_a_name_is_text_and_not_empty(name: str, value: Any) -> None:
    with pytest.raises(MalformedValueError, match=name):
        LlmCallConfig(**{name: value})
    with pytest.raises(MalformedValueError, match=name):
        request(**{name: value})


@pytest.mark.parametrize("temperature", [float("nan"), float("inf"), -float("inf"), "1", True, 10**400])
def test_a_temperature_is_a_finite_number(temperature: Any) -> None:
    with pytest.raises(MalformedValueError, match="temperature"):
        LlmCallConfig(temperature=temperature)


@pytest.mark.parametrize("stop", ["END", [""], ["a", 5], [None]])
def test_stop_is_a_list_of_strings_that_are_not_empty(stop: Any) -> None:
    with pytest.raises(MalformedValueError, match="stop"):
        LlmCallConfig(stop=stop)
    with pytest.raises(MalformedValueError, match="stop"):
        request(stop=stop)


@pytest.mark.parametrize(
    "data",
    [None, [], {"provider": 5}, {"provider": ""}, {"max_tokens": 0}, {"max_tokens": 1.5}, {"temperature": "warm"},
     {"stop": "END"}, {"stop": [1]}, {"reasoning_effort": []}],
)  # fmt: skip
def test_json_that_is_no_call_config_is_malformed(data: Any) -> None:
    with pytest.raises(MalformedValueError):
        LlmCallConfig.from_json(data)


# -- tools


def test_the_parameters_of_a_tool_are_a_json_schema_object() -> None:
    assert ToolSchema.from_json(through_json(READ.to_json())) == READ
    with pytest.raises(LossyValueError, match="parameters of tool 'x'"):
        ToolSchema("x", "", {"default": float("nan")})
    wrong: Any
    for wrong in ([], "object", None, True):
        with pytest.raises(MalformedValueError, match="parameters"):
            ToolSchema("x", "", wrong)
    for wrong in ("", None, 5):
        with pytest.raises(MalformedValueError, match="name"):
            ToolSchema(wrong, "", {})
    with pytest.raises(MalformedValueError, match="description"):
        ToolSchema("x", None, {})  # type: ignore[arg-type]


# -- the header


@given(Headers)
def test_a_header_comes_back_from_its_json_as_it_was(header: EpochHeader) -> None:
    again = EpochHeader.from_json(through_json(header.to_json()))
    assert again == header
    assert again.tools == header.tools
    assert again.proposal() == header.proposal()


def test_text_of_a_request_is_the_same_as_in_the_log_though_a_character_came_in_halves() -> None:
    halves = "\ud83c\udf0d"
    config = LlmCallConfig(provider=halves, model=halves, stop=(halves,))
    assert (config.provider, config.model, config.stop) == ("🌍", "🌍", ("🌍",))
    sent = request(system=halves, stop=[halves], provider=halves, tools=[ToolSchema(halves, halves, {})])
    assert (sent.system, sent.stop, sent.provider) == ("🌍", ("🌍",), "🌍")
    assert (sent.tools[0].name, sent.tools[0].description) == ("🌍", "🌍")


def test_a_header_is_a_full_snapshot_in_which_empty_means_absent() -> None:
    config = LlmCallConfig(provider="mine", model="m", reasoning_effort=HIGH, max_tokens=100)
    header = EpochHeader(config=config, adapter_defaults=frozenset({"max_tokens"}), system="Be brief.", tools=(READ,))
    assert header.to_json() == {
        "provider": "mine", "model": "m", "reasoning_effort": "high", "max_tokens": 100,
        "adapter_defaults": {"max_tokens": True}, "system": "Be brief.", "tools": [READ.to_json()],
    }  # fmt: skip
    assert EpochHeader(config=LlmCallConfig(), system="").to_json() == {}


def test_the_order_of_tools_is_the_one_given_and_another_order_is_another_header() -> None:
    config = LlmCallConfig(provider="mine", model="m")
    one, other = EpochHeader(config=config, tools=(READ, LIST)), EpochHeader(config=config, tools=(LIST, READ))
    assert one != other
    for header, names in ((one, ["read", "list"]), (other, ["list", "read"])):
        again = EpochHeader.from_json(through_json(header.to_json()))
        assert [tool.name for tool in again.tools] == names
        assert [tool.name for tool in again.request(()).tools] == names


def test_the_next_proposal_is_without_what_the_adapter_filled_in() -> None:
    config = LlmCallConfig(provider="mine", model="m", reasoning_effort=HIGH, max_tokens=100, temperature=0.5)
    assert EpochHeader(config=config).proposal() == config
    marked = EpochHeader(config=config, adapter_defaults=frozenset({"reasoning_effort", "max_tokens"}))
    assert marked.proposal() == LlmCallConfig(provider="mine", model="m", temperature=0.5)
    one = EpochHeader(config=config, adapter_defaults=frozenset({"max_tokens"}))
    assert one.proposal() == replace(config, max_tokens=None)
    unmarked = {**config.to_json(), "adapter_defaults": {"max_tokens": False}}
    assert EpochHeader.from_json(unmarked).proposal() == config


def test_the_next_proposal_is_as_it_was_before_it_was_intercepted() -> None:
    config = LlmCallConfig(provider="mine", model="small", max_tokens=100, stop=("x",))
    intercepted = {"model": "large", "max_tokens": None, "stop": ["END"], "not_known_yet": 1}
    header = EpochHeader(config=config, intercepted=intercepted)
    assert header.proposal() == LlmCallConfig(provider="mine", model="large", stop=("END",))
    assert EpochHeader.from_json(through_json(header.to_json())).proposal() == header.proposal()


def test_what_was_proposed_wins_over_the_mark_of_the_adapter() -> None:
    """An intercept layer took a cap away, and then the adapter filled in its own: proposed was the first."""
    config = LlmCallConfig(max_tokens=4096)
    marked = EpochHeader(config=config, adapter_defaults=frozenset({"max_tokens"}), intercepted={"max_tokens": 100})
    assert marked.proposal().max_tokens == 100


@pytest.mark.parametrize(
    "members",
    [{"adapter_defaults": {"temperature"}}, {"intercepted": {"max_tokens": 0}}, {"intercepted": {"stop": "END"}},
     {"intercepted": {"model": ""}}],
)  # fmt: skip
def test_a_header_no_proposal_can_be_made_of_is_refused_at_once(members: dict[str, Any]) -> None:
    with pytest.raises(MalformedValueError):
        EpochHeader(config=LlmCallConfig(), **members)
    marks = dict.fromkeys(members.get("adapter_defaults", ()), True)
    with pytest.raises(MalformedValueError):
        EpochHeader.from_json({**members, "adapter_defaults": marks})


@pytest.mark.parametrize(
    "data", [None, {"tools": {}}, {"tools": [1]}, {"tools": [{"name": "x"}]}, {"system": 5}, {"adapter_defaults": []}]
)
def test_json_that_is_no_header_is_malformed(data: Any) -> None:
    with pytest.raises(MalformedValueError):
        EpochHeader.from_json(data)


# -- header and history are the request


@given(Headers, Histories)
def test_a_header_and_a_history_read_from_the_log_make_the_very_same_request(
    header: EpochHeader, history: list[Message]
) -> None:
    if header.config.provider is None or header.config.model is None:
        with pytest.raises(MalformedValueError, match="provider"):
            header.request(history)
        return
    sent = header.request(history)
    log = through_json({"header": header.to_json(), "history": [message.to_json() for message in history]})
    rebuilt = EpochHeader.from_json(log["header"]).request([message_from_json(each) for each in log["history"]])
    assert in_it(rebuilt) == in_it(sent)
    assert sent.config == header.config
    assert list(sent.messages) == history
    assert sent.messages == rebuilt.messages
    assert (sent.system, sent.tools) == (header.system, header.tools)


def test_what_is_no_part_of_the_reconstruction_is_stamped_on_the_request() -> None:
    header = EpochHeader(config=LlmCallConfig(provider="mine", model="m"))
    signal, id, scope = Aborter().signal, session_id(), Scope("agent")
    stamped = header.request([user_message("hi")], signal=signal, session_id=id, scope=scope)
    assert (stamped.signal, stamped.session_id, stamped.scope, stamped.purpose) == (signal, id, scope, None)


def test_the_wire_order_is_system_then_history_with_the_newest_message_last() -> None:
    first, answer = user_message("read a"), Message(message_id(), "assistant", (), ModelSource("mine", "m"))
    block = ToolResultBlock(CallId("x"), (TextBlock("it is empty"),))
    result = Message(message_id(), "user", (block,), ToolSource("read"))
    header = EpochHeader(config=LlmCallConfig(provider="mine", model="m"), system="Be brief.")
    assert header.request([first]).messages[-1] is first
    later = header.request([first, answer, result])
    assert later.system == "Be brief."
    assert later.messages == (first, answer, result)


# -- requests


def test_a_request_has_the_fields_of_the_contract_and_needs_three_of_them() -> None:
    bare = request()
    assert in_it(bare) == {
        "provider": "mine", "model": "m", "messages": bare.messages, "reasoning_effort": None, "system": None,
        "tools": (), "temperature": None, "max_tokens": None, "stop": None, "signal": None, "session_id": None,
        "scope": None, "purpose": None,
    }  # fmt: skip
    with pytest.raises(TypeError):
        GenerateOptions(provider="mine", model="m")  # type: ignore[call-arg]


def test_a_request_is_known_by_identity() -> None:
    one = request(messages=())
    other = replace(one)
    assert one != other
    assert in_it(one) == in_it(other)
    marked = {one}
    assert one in marked
    assert other not in marked
    assert weakref.ref(one)() is one


def test_a_request_cannot_be_changed_at_any_depth() -> None:
    tools, messages, stop, parameters = [LIST], [user_message("hi")], ["END"], {"type": "object", "required": ["a"]}
    mine = request(tools=[*tools, ToolSchema("x", "", parameters)], messages=messages, stop=stop)
    messages.clear()
    stop.append("more")
    parameters["required"] = []
    assert (len(mine.messages), mine.stop) == (1, ("END",))
    assert mine.tools[1].parameters == {"type": "object", "required": ("a",)}
    for each in fields(mine):
        with pytest.raises(FrozenInstanceError):
            setattr(mine, each.name, None)
    with pytest.raises(AttributeError):
        mine.messages.append(user_message("no"))  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        mine.tools[0] = LIST  # type: ignore[index]
    with pytest.raises(TypeError):
        mine.stop[0] = "x"  # type: ignore[index]
    inner: Any = mine.tools[1].parameters
    with pytest.raises(TypeError):
        inner["type"] = "array"
    with pytest.raises(TypeError):
        inner["required"][0] = "b"
    with pytest.raises(TypeError):
        inner.update(x=1)
    with pytest.raises(TypeError):
        del inner["type"]
    message: Any = mine.messages[0]
    with pytest.raises(FrozenInstanceError):
        message.content = ()
    with pytest.raises(FrozenInstanceError):
        message.content[0].text = "no"


def test_the_replay_state_in_a_request_cannot_be_changed() -> None:
    state = {"response": {"items": [{"id": 1}]}}
    answer = Message(message_id(), "assistant", (TextBlock("a"),), ModelSource("mine", "m", state))
    source: Any = request(messages=[answer]).messages[0].source
    state["response"]["items"].clear()
    assert source.replay_state == {"response": {"items": ({"id": 1},)}}
    with pytest.raises(TypeError):
        source.replay_state["response"] = {}
    with pytest.raises(TypeError):
        source.replay_state["response"]["items"][0]["id"] = 2
    with pytest.raises(FrozenInstanceError):
        source.replay_state = None


def test_frozen_values_are_copied_as_themselves() -> None:
    assert copy.deepcopy(READ) == READ
    assert hash(READ) == hash(ToolSchema.from_json(through_json(READ.to_json())))
    header = EpochHeader(config=LlmCallConfig(provider="mine", stop=("x",)), tools=(READ,), seeds={"a": [1, {"b": 2}]})
    assert hash(header) == hash(EpochHeader.from_json(through_json(header.to_json())))


def test_what_a_call_is_for_is_one_of_two_auxiliary_purposes_or_nothing() -> None:
    assert get_args(Purpose) == ("compaction", "session-title")
    assert request(purpose="compaction").purpose == "compaction"


def test_a_request_shows_neither_signal_nor_scope() -> None:
    shown = repr(request(signal=Aborter().signal))
    assert "signal" not in shown
    assert "scope" not in shown
    assert Scope.__name__ not in shown


# -- providers and models


def test_catalog_values_say_what_is_known_and_leave_out_the_rest() -> None:
    assert ProviderInfo("mine", "Mine") == ProviderInfo(id="mine", name="Mine")
    assert ModelInfo(provider="p", id="m", name="M").description is None
    assert DiscoveredModel(id="m") == DiscoveredModel(id="m", name=None, context_window=None, max_tokens=None)
    bare = ResolvedModel(provider="p", id="m", name="M")
    assert (bare.context, bare.default_max_tokens, bare.reasoning) == (None, None, None)
    assert isinstance(bare, ModelInfo)
    known = ResolvedModel(provider="p", id="m", name="M", context=ModelContext(128_000), default_max_tokens=8_000)
    assert known.context is not None
    assert known.context.context_window == 128_000
    path: Any = ["providers", "p"]
    offered = ConfigurableProvider(provider="p", display_name="P", settings_ns="llm", settings_path=path)
    assert offered.settings_path == ("providers", "p")


def test_a_draft_may_say_nothing_and_never_shows_its_credential() -> None:
    assert ModelDiscoveryRequest() == ModelDiscoveryRequest(provider=None, base_url=None, api=None, api_key=None)
    assert "s3cret" not in repr(ModelDiscoveryRequest(base_url="http://localhost", api_key="s3cret"))


def test_efforts_keep_the_order_of_the_adapter_and_need_no_names_of_the_core() -> None:
    efforts = [ReasoningEffort(ReasoningEffortId(id), id.title(), "…") for id in ("zen", "calm", "9000")]
    reasoning = ModelReasoning(tuple(efforts), ReasoningEffortId("calm"))
    assert [effort.id for effort in reasoning.efforts] == ["zen", "calm", "9000"]
    assert ModelReasoning(tuple(efforts)).default_effort is None


def test_efforts_that_contradict_themselves_are_refused() -> None:
    low = ReasoningEffort(ReasoningEffortId("low"), "Low")
    with pytest.raises(MalformedValueError, match="differ"):
        ModelReasoning((low, low))
    with pytest.raises(MalformedValueError, match="high"):
        ModelReasoning((low,), HIGH)
    with pytest.raises(MalformedValueError, match="there are none"):
        ModelReasoning((), HIGH)


def test_a_retry_policy_has_the_defaults_of_the_harness() -> None:
    policy = RetryPolicy()
    assert (policy.mode, policy.max_retries) == ("normal", 5)
    assert FailureCode.RATE_LIMITED in policy.retryable_codes
    assert FailureCode.CONTEXT_WINDOW_EXCEEDED not in policy.retryable_codes
    codes: Any = ["MINE"]
    assert RetryPolicy(retryable_codes=codes).retryable_codes == frozenset({"MINE"})


@pytest.mark.parametrize(
    "members",
    [{"mode": "sometimes"}, {"max_retries": -1}, {"max_retries": 1.5}, {"initial_delay_ms": -1},
     {"max_delay_ms": float("inf")}, {"jitter_ratio": -0.1}, {"jitter_ratio": 1.1}, {"jitter_ratio": float("nan")}],
)  # fmt: skip
def test_a_retry_policy_that_cannot_be_followed_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(MalformedValueError):
        RetryPolicy(**members)

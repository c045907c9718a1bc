"""Ids: distinct for the type checker (see `tests/typing`), plain strings for everybody else."""

import json
from collections.abc import Callable
from enum import StrEnum

import pytest

from dshd.capabilities.jobs import task_id
from dshd.capabilities.values import call_id, message_id, reasoning_effort_id, session_id

MINTING: list[Callable[..., str]] = [message_id, call_id, session_id, task_id]
ALL: list[Callable[..., str]] = [*MINTING, reasoning_effort_id]


class Name(StrEnum):
    LOW = "low"


@pytest.mark.parametrize("factory", ALL)
def test_an_id_of_given_text_is_that_text_for_json_logging_and_comparison(factory: Callable[..., str]) -> None:
    made = factory("abc-1")
    assert type(made) is str
    assert made == "abc-1"
    assert hash(made) == hash("abc-1")
    assert json.dumps({made: made}) == '{"abc-1": "abc-1"}'
    assert f"{made}" == "abc-1"


@pytest.mark.parametrize("factory", MINTING)
def test_a_minted_id_is_text_that_no_other_has(factory: Callable[..., str]) -> None:
    minted = {factory() for _ in range(1000)}
    assert len(minted) == 1000
    assert all(type(each) is str and each.isascii() and each for each in minted)


@pytest.mark.parametrize("factory", ALL)
@pytest.mark.parametrize("wrong", ["", b"abc", 3, ["abc"]], ids=repr)
def test_what_is_empty_or_no_text_is_no_id(factory: Callable[..., str], wrong: object) -> None:
    with pytest.raises(ValueError, match="id is"):
        factory(wrong)


@pytest.mark.parametrize("factory", ALL)
def test_an_id_carries_no_class_of_its_own_and_reads_back_as_it_is(factory: Callable[..., str]) -> None:
    assert type(factory(Name.LOW)) is str
    for text in ("\ud83d", "\ud83d\ude00"):
        assert json.loads(json.dumps(factory(text))) == factory(text)


def test_an_effort_has_no_id_unless_its_adapter_gives_one() -> None:
    with pytest.raises(TypeError):
        reasoning_effort_id()  # type: ignore[call-arg]


def test_a_session_id_minted_for_a_label_begins_with_it() -> None:
    one, two = session_id(label="coder"), session_id(label="coder")
    assert one.startswith("coder-session-")
    assert one != two
    assert session_id("exactly-this", label="coder") == "exactly-this"
    with pytest.raises(ValueError, match="not empty"):
        session_id(label="")

"""Secrets show nowhere, are read at each use, and are equal by where they come from."""

import copy
import pickle
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter, ValidationError

from dshd import Config
from dshd.kernel.secret import HANDLES, MASK, Secret, SecretUnavailableError

TEXT = "sk-live-4711"


class Endpoint(Config):
    api_key: Secret
    """Key of the account."""
    spare: Secret | None = None
    headers: dict[str, Secret] = Field(default_factory=dict)


@dataclass(frozen=True)
class Handle:
    name: str
    values: dict[str, str] = field(compare=False)

    def reveal(self) -> str:
        try:
            return self.values[self.name]
        except KeyError:
            raise SecretUnavailableError(self.name, f"credential {self.name!r} is missing") from None


def endpoint() -> Endpoint:
    return Endpoint.model_validate({"api_key": TEXT, "headers": {"authorization": f"Bearer {TEXT}"}})


def test_a_literal_is_revealed_as_it_was_written() -> None:
    assert endpoint().api_key.reveal() == TEXT


def test_no_view_of_a_config_shows_a_secret() -> None:
    config = endpoint()
    views = [
        repr(config),
        str(config),
        f"{config.api_key} {config.api_key!r} {config.headers}",
        repr(config.model_dump()),
        repr(config.model_dump(mode="json")),
        config.model_dump_json(),
        repr(TypeAdapter(dict[str, Secret]).dump_python(config.headers, mode="json")),
        repr(dir(config.api_key)),
    ]
    assert [view for view in views if TEXT in view] == []
    assert MASK in config.model_dump_json()


@given(st.text(min_size=1).filter(lambda text: text not in f"Secret('{MASK}')"))
def test_no_text_shows_through(text: str) -> None:
    assert text not in repr(Secret(text))
    assert text not in str(Secret(text))


def test_a_dump_can_be_validated_again() -> None:
    config = endpoint()
    assert Endpoint.model_validate(config.model_dump()) == config
    assert copy.deepcopy(config) == config


def test_a_secret_is_not_pickled_nor_changed() -> None:
    secret = Secret(TEXT)
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(secret)
    with pytest.raises(AttributeError, match="cannot be changed"):
        secret._source = "other"
    with pytest.raises(AttributeError, match="cannot be changed"):
        del secret._source


def test_secrets_are_equal_by_their_source() -> None:
    here, there = {"A": "1", "B": "1"}, {"A": "2"}
    assert Secret("x") == Secret("x") != Secret("y")
    assert Secret(Handle("A", here)) == Secret(Handle("A", there))
    assert Secret(Handle("A", here)) != Secret(Handle("B", here))
    assert Secret("1") != Secret(Handle("A", here))
    assert Secret("x") != "x"
    assert len({Secret("x"), Secret("x"), Secret(Handle("A", here))}) == 2


def test_a_handle_is_read_at_each_use() -> None:
    values = {"KEY": "old"}
    secret = Secret(Handle("KEY", values))
    assert secret.reveal() == "old"
    values["KEY"] = "new"
    assert secret.reveal() == "new"
    del values["KEY"]
    with pytest.raises(SecretUnavailableError, match="'KEY' is missing"):
        secret.reveal()


def test_handles_come_in_through_the_context_of_the_validation() -> None:
    handle = Handle("KEY", {"KEY": "v"})
    config = Endpoint.model_validate_json(
        '{"api_key": "<1>", "spare": "<2>"}', strict=True, context={HANDLES: {"<1>": handle}}
    )
    assert config.api_key == Secret(handle)
    assert config.spare == Secret("<2>")
    assert config.api_key.handle is handle
    assert Secret("x").handle is None


@pytest.mark.parametrize("value", [5, True, None, ["x"], {"x": 1}])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(ValidationError, match="must be text"):
        Endpoint.model_validate({"api_key": value})
    with pytest.raises(TypeError, match="made of text"):
        Secret(value)  # type: ignore[arg-type]


def test_the_schema_says_that_it_is_written_and_not_read() -> None:
    schema = Endpoint.model_json_schema()["properties"]["api_key"]
    assert schema == {
        "type": "string", "writeOnly": True, "format": "password", "title": "Api Key",
        "description": "Key of the account.",
    }  # fmt: skip

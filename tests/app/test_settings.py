"""The `daemon:` section, the variables that shadow it, and what of it a reload applies."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from dshd.app.settings import (
    LIVE,
    RESTART,
    DaemonSettings,
    OverrideError,
    applied,
    effective,
    overrides,
    shadowed,
    waiting,
)
from dshd.loader.issues import Mark
from dshd.loader.node import Node


def test_every_field_is_either_live_or_waits_for_a_restart() -> None:
    assert set(LIVE) | set(RESTART) == set(DaemonSettings.model_fields)
    assert not set(LIVE) & set(RESTART)


@pytest.mark.parametrize(
    ("written", "seconds"), [("250ms", 0.25), ("60s", 60), ("5m", 300), ("2h", 7200), ("1.5h", 5400), (7, 7), ("7", 7)]
)
def test_durations_are_read_as_people_write_them(written: object, seconds: float) -> None:
    assert DaemonSettings.model_validate({"drain": written}).drain == seconds


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("drain", "5 minutes", "write 250ms, 60s"),
        ("drain", -1, "greater than or equal to 0"),
        ("drain", float("inf"), "finite"),
        ("timezone", "Mars/Olympus", "no time zone 'Mars/Olympus'"),
        ("group", "no-such-group", "no group 'no-such-group'"),
        ("watch", True, "'auto', 'poll' or 'off'"),
        ("log_levle", "info", "Extra inputs"),
    ],
)
def test_a_wrong_value_is_refused_with_what_to_write(field: str, value: object, says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        DaemonSettings.model_validate({field: value})
    assert says in str(caught.value)


def test_a_variable_shadows_the_section() -> None:
    over = overrides({"DSHD_DRAIN": "5s", "DSHD_DEVELOPMENT": "true", "DSHD_SOCKET": "/x", "OTHER": "1"})
    assert over == {"drain": 5.0, "development": True}
    assert effective({"drain": 9, "rescan": 3}, over) == DaemonSettings(drain=5, rescan=3, development=True)


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(OverrideError, match="DSHD_DRAIN: 'soon' is no duration"):
        overrides({"DSHD_DRAIN": "soon"})


def test_shadowing_and_unknown_variables_are_said_with_the_place() -> None:
    mark = Mark("dshd.yaml", 3, 5)
    section = Node({"drain": Node("9s", mark)}, mark, {"drain": mark})
    issues = shadowed(section, {"DSHD_DRAIN": "5s", "DSHD_RESCAN": "1s", "DSHD_DRIAN": "2s", "DSHD_CONFIG": "x"})
    assert [(issue.code, issue.severity, issue.line) for issue in issues] == [
        ("W0611", "warning", 3),
        ("W0612", "warning", None),
    ]
    assert issues[1].hint == "did you mean 'DSHD_DRAIN'?"


def test_a_change_says_what_is_applied_and_what_waits() -> None:
    old, new = DaemonSettings(), DaemonSettings(log_level="debug", watch="poll")
    assert applied(old, new) == ("daemon.log_level",)
    (waits,) = waiting(old, new)
    assert waits.startswith("daemon.watch: waits for a restart, because ")

"""References are put in place, once, with what they name; credentials are found at each use."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dshd.kernel.secret import SecretUnavailableError
from dshd.loader.credentials import LIMIT as CREDENTIAL_LIMIT
from dshd.loader.credentials import Credentials
from dshd.loader.expand import LIMIT, BadReference, Expanded, Expander, Reference, split
from dshd.loader.files import Disk
from dshd.loader.issues import Issue, Issues, Mark
from dshd.loader.node import Node


class Bench:
    """An expander over a directory, with what it has reported."""

    def __init__(self, home: Path, environ: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.issues = Issues()
        self.environ = dict(environ or {})
        self.credentials = Credentials(self.environ, home / "state")
        self.expander = Expander(Disk(), self.environ, self.credentials, self.issues)

    def node(self, value: object, line: int = 1) -> Node:
        mark = Mark(str(self.home / "dshd.yaml"), line, 1)
        if isinstance(value, dict):
            members = {key: self.node(member, line + index) for index, (key, member) in enumerate(value.items())}
            return Node(members, mark, {key: member.mark for key, member in members.items()})
        if isinstance(value, list):
            return Node([self.node(member, line) for member in value], mark)
        assert value is None or isinstance(value, (str, int, float, bool))
        return Node(value, mark)

    def expand(self, value: object) -> Node:
        return self.expander.expand(self.node(value), "row", ("config",))

    def only_issue(self) -> Issue:
        (issue,) = self.issues
        return issue


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, {"NAME": "ada", "EMPTY": "", "HOME": str(tmp_path)})


def test_environment_variables_are_put_in_place_anywhere_in_a_text(bench: Bench) -> None:
    expanded = bench.expand({"a": "${env:NAME}", "b": ["x ${env:NAME} y ${env:NAME}"], "c": 5})
    assert expanded.plain() == {"a": "ada", "b": ["x ada y ada"], "c": 5}
    assert list(bench.expander.environment) == ["NAME"]
    assert len(bench.issues) == 0


def test_what_has_no_reference_is_shared(bench: Bench) -> None:
    node = bench.node({"a": ["x", {"b": "$NAME $ {"}], "c": None, "d": {}})
    assert bench.expander.expand(node, "row") is node


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("${env:GHOST:-x}", "x"),
        ("${env:GHOST:-}", ""),
        ("${env:EMPTY:-x}", "x"),
        ("${env:EMPTY}", ""),
        ("${env:NAME:-x}", "ada"),
        ('${env:GHOST:-{"a": {}}}!', '{"a": {}}!'),
        ("${env:GHOST:-a:-b}", "a:-b"),
        ("$${A}", "${A}"),
        ("$${env:NAME}", "${env:NAME}"),
        ("$$${env:NAME}", "$${env:NAME}"),
        ("${env:NAME}$${env:NAME}", "ada${env:NAME}"),
        ("$NAME", "$NAME"),
        ("a } b $", "a } b $"),
    ],
)
def test_defaults_and_escapes(bench: Bench, text: str, given: str) -> None:
    assert bench.expand(text).value == given
    assert len(bench.issues) == 0


def test_what_a_reference_gives_is_not_expanded_again(bench: Bench) -> None:
    bench.environ["EVIL"] = "${file:/etc/passwd} ${env:NAME} $${x}"
    assert bench.expand("${env:EVIL}").value == bench.environ["EVIL"]
    (bench.home / "note").write_text("${env:NAME}")
    assert bench.expand("${file:note}").value == "${env:NAME}"


def test_an_unset_variable_is_named_with_its_place(bench: Bench) -> None:
    expanded = bench.expand({"url": "x", "keys": [{"key": "${env:GHOST}"}]})
    issue = bench.only_issue()
    assert (issue.code, issue.row, issue.line) == ("E0302", "row", 2)
    assert issue.message == "config.keys[0].key: environment variable 'GHOST' is not set"
    assert issue.hint is not None
    assert "${env:GHOST:-…}" in issue.hint
    (leaf,) = (leaf for _, leaf in expanded.leaves() if isinstance(leaf, Expanded))
    assert leaf.broken
    assert "${" not in str(leaf.value)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("${GHOST}", "'${GHOST}' does not say", "${env:GHOST}"),
        ("${HOME}/x", "'${HOME}' does not say", "$${HOME}"),
        ("${evn:X}", "no kind 'evn'", "did you mean 'env'?"),
        ("${secret:X}", "no kind 'secret'", "${credential:…}"),
        ("${env:}", "'' cannot be the name", "${env:NAME}"),
        ("${env:1X}", "'1X' cannot be the name", "${env:NAME}"),
        ("${env:A-B}", "'A-B' cannot be the name", "${env:NAME:-default}"),
        ("${env:X", "is not closed", "close it with }"),
        ("${env:X:-{}", "is not closed", "close it with }"),
        ("${}", "no kind ''", "$${}"),
        ("${file:}", "names no file", "${file:PATH}"),
        ("${credential:../x}", "'../x' cannot be the name of a credential", "letters"),
        ("${credential:X:-y}", "'X:-y' cannot be the name of a credential", "no default"),
    ],
)
def test_a_bad_reference_is_reported_with_what_to_write(bench: Bench, text: str, message: str, hint: str) -> None:
    bench.expand({"k": text})
    issue = bench.only_issue()
    assert issue.code == "E0301"
    assert issue.message.startswith("config.k: ")
    assert message in issue.message
    assert issue.hint is not None
    assert hint in issue.hint


def test_a_key_is_no_place_for_a_reference(bench: Bench) -> None:
    bench.expand({"${env:NAME}": 1})
    assert bench.only_issue().code == "E0307"


def test_one_mistake_behind_an_alias_is_reported_once(bench: Bench) -> None:
    shared = bench.node({"k": "${env:GHOST}"})
    for row in ("a", "b"):
        bench.expander.expand(Node({"x": shared, "y": shared}, shared.mark), row)
    assert len(bench.issues) == 1


def test_a_variable_that_is_not_utf8_is_refused(bench: Bench) -> None:
    bench.environ["RAW"] = os.fsdecode(b"\xff")
    bench.expand("${env:RAW}")
    assert bench.only_issue().message == "config: environment variable 'RAW' is not UTF-8"


@given(st.text())
def test_escaping_gives_any_text_back(text: str) -> None:
    escaped = text.replace("${", "$${")
    assert "".join(map(str, split(escaped))) == text


@given(st.text(alphabet="${}:-env fA\\\n", max_size=30))
def test_splitting_loses_no_text(text: str) -> None:
    try:
        parts = split(text)
    except BadReference:
        return
    for part in parts:
        if isinstance(part, Reference):
            assert part.kind in ("env", "file")
    if all(isinstance(part, str) for part in parts):
        assert "".join(map(str, parts)) == text.replace("$${", "${")


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_file_lies_beside_the_file_that_names_it(bench: Bench) -> None:
    (bench.home / "prompts").mkdir()
    (bench.home / "prompts" / "ops.md").write_text("Be brief.\n\n")
    assert bench.expand({"persona": "${file:prompts/ops.md}"}).plain() == {"persona": "Be brief.\n"}
    assert list(bench.expander.referenced) == [str(bench.home / "prompts" / "ops.md")]


@pytest.mark.parametrize(
    ("raw", "text"),
    [(b"x", "x"), (b"x\r\n", "x"), (b"\n", ""), (b"", ""), (b"\xef\xbb\xbfx\n", "x"), (b"x\r", "x\r")],
)
def test_one_final_newline_of_a_file_is_dropped(bench: Bench, raw: bytes, text: str) -> None:
    (bench.home / "f").write_bytes(raw)
    assert bench.expand("${file:f}").value == text


def test_absolute_paths_and_the_home_directory_work(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    assert bench.expand("${file:~/f}${file:./f}" + f"${{file:{tmp_path}/f}}").value == "xxx"
    assert list(bench.expander.referenced) == [str(tmp_path / "f")]


def test_a_file_that_cannot_be_used_is_named(bench: Bench) -> None:
    (bench.home / "latin").write_bytes(b"caf\xe9")
    (bench.home / "big").write_bytes(b"x" * (LIMIT + 1))
    (bench.home / "dir").mkdir()
    names = ["gone", "latin", "big", "dir"]
    for name in names:
        bench.expand({name: f"${{file:{name}}}"})
    found = {issue.message.removeprefix("config.").partition(":")[0]: issue for issue in bench.issues}
    assert {name: found[name].code for name in names} == {
        "gone": "E0303", "latin": "E0304", "big": "E0304", "dir": "E0303",
    }  # fmt: skip
    assert f"there is no file {str(bench.home / 'gone')!r}" in found["gone"].message
    assert "not UTF-8 (byte 3)" in found["latin"].message
    assert "larger than 1 MiB" in found["big"].message
    # What does not exist is watched as well: it may come.
    assert len(bench.expander.referenced) == 4


# -- credentials -------------------------------------------------------------------------------------------------------


def handle_of(node: Node) -> str:
    assert isinstance(node, Expanded)
    assert node.handle is not None
    return node.handle.reveal()


def test_a_credential_becomes_a_handle_that_is_read_at_each_use(bench: Bench) -> None:
    bench.environ["KEY"] = "old"
    node = bench.expand("Bearer ${credential:KEY} ${env:NAME}")
    assert handle_of(node) == "Bearer old ada"
    bench.environ["KEY"] = "new"
    assert handle_of(node) == "Bearer new ada"
    assert list(bench.expander.credentials) == ["KEY"]
    assert "new" not in repr(node)
    assert repr(bench.expand("${env:NAME}")).startswith("<text of environment variable 'NAME' at ")


def test_the_places_of_a_credential_count_in_order(tmp_path: Path) -> None:
    directory, state = tmp_path / "creds", tmp_path / "state"
    directory.mkdir()
    state.mkdir()
    environ: dict[str, str] = {"CREDENTIALS_DIRECTORY": str(directory)}
    credentials = Credentials(environ, state)
    (state / "credentials.yaml").write_text("KEY: stored\n")
    assert (credentials.read("KEY"), credentials.where("KEY")) == ("stored", str(state / "credentials.yaml"))
    environ["KEY"] = "variable"
    assert (credentials.read("KEY"), credentials.where("KEY")) == ("variable", "environment variable KEY")
    (directory / "dshd_KEY").write_text("prefixed\n")
    assert credentials.read("KEY") == "prefixed"
    (directory / "KEY").write_text("plain\r\n")
    assert credentials.read("KEY") == "plain"
    (directory / "KEY").write_text("")
    assert credentials.read("KEY") == "prefixed"
    assert credentials.check("KEY") is None
    assert set(credentials.files("KEY")) == {directory / "KEY", directory / "dshd_KEY", state / "credentials.yaml"}


def test_a_missing_credential_names_every_place(tmp_path: Path) -> None:
    credentials = Credentials({"CREDENTIALS_DIRECTORY": str(tmp_path), "KEY": ""}, tmp_path / "state")
    message = credentials.check("KEY")
    assert message == (
        f"credential 'KEY' is missing; looked at {tmp_path / 'KEY'}, {tmp_path / 'dshd_KEY'}, "
        f"environment variable KEY (empty), {tmp_path / 'state' / 'credentials.yaml'}"
    )
    assert "not set" in str(Credentials({}).check("KEY"))
    assert credentials.where("KEY") is None


def test_a_rotation_of_the_same_size_within_a_tick_is_seen(tmp_path: Path) -> None:
    credentials = Credentials({"CREDENTIALS_DIRECTORY": str(tmp_path)}, tmp_path)
    for number in range(100):
        (tmp_path / "A").write_text(f"{number:04}")
        (tmp_path / "credentials.yaml").write_text(f"B: '{number:04}'\n")
        assert credentials.read("A") == credentials.read("B") == f"{number:04}"


@pytest.mark.parametrize("name", ["../state/x", "/etc/passwd", "a/b", "", ".", "..", ".x", "a\0b", "a\n", "x" * 200])
def test_a_name_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    credentials = Credentials({"CREDENTIALS_DIRECTORY": str(tmp_path)}, tmp_path)
    with pytest.raises(SecretUnavailableError, match="cannot be the name"):
        credentials.read(name)
    assert credentials.where(name) is None


def test_values_in_the_file_are_texts_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "credentials.yaml").write_text(
        "A: no\nB: 0123\nC: '1 # 2'\nD: |\n  line\nE: !!python/name:os.system x\n"
    )
    stored = Credentials({}, tmp_path).stored()
    assert stored == {"A": "no", "B": "0123", "C": "1 # 2", "D": "line", "E": "x"}
    assert Credentials({}, tmp_path / "none").stored() == {}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"KEY: sk-marker\nKEY: sk-marker", "has 'KEY' twice (line 2)"),
        (b"KEY: [sk-marker", "is not valid YAML (line 2)"),
        (b"- sk-marker", "is not a mapping of names to texts"),
        (b"KEY: {a: sk-marker}", "is not a mapping of names to texts"),
        (b"KEY: sk-marker\xff", "is not UTF-8 (byte 14)"),
        (b"KEY: " + b"sk-marker" * CREDENTIAL_LIMIT, "is larger than 1 MiB"),
    ],
)
def test_a_file_that_cannot_be_read_says_why_and_shows_nothing(tmp_path: Path, raw: bytes, words: str) -> None:
    (tmp_path / "credentials.yaml").write_bytes(raw)
    message = Credentials({}, tmp_path).check("KEY")
    assert message is not None
    assert words in message
    assert str(tmp_path / "credentials.yaml") in message
    assert "sk-marker" not in message


def test_a_place_that_cannot_be_read_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "KEY").mkdir()
    credentials = Credentials({"CREDENTIALS_DIRECTORY": str(tmp_path), "KEY": "variable"})
    assert "is not a file" in str(credentials.check("KEY"))
    os.mkfifo(tmp_path / "PIPE")
    assert "is not a file" in str(credentials.check("PIPE"))

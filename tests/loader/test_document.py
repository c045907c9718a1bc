"""The strict YAML subset: what plain scalars mean, what is refused and where, and limits that hold at once."""

import json
import random
import re
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dshd.loader.document import DEPTH, ERRORS, NODES, SIZE, parse, read_document, scalar
from dshd.loader.issues import Issue, Issues, render
from dshd.loader.node import Node


def read(text: str | bytes) -> Node:
    """The root of a valid document."""
    issues = Issues()
    root = read_document("f.yaml", text.encode() if isinstance(text, str) else text, issues)
    assert [render(issue) for issue in issues] == []
    assert root is not None
    return root


def refused(text: str | bytes) -> Issue:
    """The only issue of a document that is refused."""
    issues = Issues()
    document = parse("f.yaml", text.encode() if isinstance(text, str) else text, issues)
    assert not document.ok
    assert document.root is None
    [issue] = issues
    assert issue.file == "f.yaml"
    return issue


def place(issue: Issue) -> tuple[int | None, int | None]:
    return issue.line, issue.col


# -- scalars


TEXTS = """
no off on yes y n No OFF 012 08 010 0123 -012 1_000 0x10 0o17 0b1 12:30 12:30:00 1:1 2024-01-31 2024-01-31T12:00:00Z
1.2.3 .5.1 1e 1e5x e5 - + . .. -. = 0.0.0.0 99999999999999999999999 1e999 -1e999 ٣ nan inf .NaN5 01.5 nULL tRUE
"""


@pytest.mark.parametrize("text", TEXTS.split())
def test_what_is_neither_a_word_nor_a_number_of_yaml_1_2_stays_text(text: str) -> None:
    assert scalar(text) == text
    assert read(f"- {text}x\n- '{text}'\n").plain() == [f"{text}x", text]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("True", True), ("FALSE", False), ("null", None), ("~", None), ("", None),
        ("0", 0), ("-7", -7), ("+7", 7), ("-0", 0), ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775808", -(2**63)), ("1.5", 1.5), ("-0.25", -0.25), (".5", 0.5), ("1.", 1.0), ("1e3", 1000.0),
        ("1.5E-2", 0.015), (".inf", float("inf")), ("-.inf", float("-inf")),
    ],
)  # fmt: skip
def test_words_and_decimal_numbers_are_values(text: str, value: object) -> None:
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)
    assert read(f"k: {text}\n").plain() == {"k": value}


def test_not_a_number_is_a_number() -> None:
    assert repr(scalar(".nan")) == "nan"


def test_quoted_and_block_text_is_text_whatever_it_looks_like() -> None:
    root = read("a: '1'\nb: \"true\"\nc: |\n  null\nd: >-\n  1.5\ne: 1\nf: ''\n")
    assert root.plain() == {"a": "1", "b": "true", "c": "null\n", "d": "1.5", "e": 1, "f": ""}
    assert [root.mapping()[key].quoted for key in "abcdef"] == [True, True, True, True, False, True]


def test_keys_are_text_as_they_are_written() -> None:
    assert read("1: a\ntrue: b\non: c\n012: d\n~: e\n'q': f\n").plain() == dict(
        zip(["1", "true", "on", "012", "~", "q"], "abcdef", strict=True)
    )


# -- places


def test_every_value_and_key_knows_its_line_and_column() -> None:
    root = read("# first\na:\n  b: [x, {c: 'ä', d: e}]\n  f: |\n    t\n")
    marks = {path: (node.mark.line, node.mark.col) for path, node in root.leaves()}
    assert marks == {
        ("a", "b", 0): (3, 7),
        ("a", "b", 1, "c"): (3, 14),
        ("a", "b", 1, "d"): (3, 22),
        ("a", "f"): (4, 6),
    }
    assert str(root.at(("a", "b", 1, "d"))) == "f.yaml:3:19"


@pytest.mark.parametrize("form", ["\ufeffa: 1\nb:\n  c: x\n", "a: 1\r\nb:\r\n  c: x\r\n", "\ufeffa: 1\r\nb:\r\n  c: x"])
def test_byte_order_mark_and_windows_line_ends_change_nothing(form: str) -> None:
    plain = read("a: 1\nb:\n  c: x\n")
    root = read(form)
    assert root.plain() == plain.plain()
    assert [node.mark for _, node in root.leaves()] == [node.mark for _, node in plain.leaves()]
    assert root.keys == plain.keys


@pytest.mark.parametrize(
    "text", ["", "# only\n# comments\n", "---\n", "--- # here\n", "\ufeff", "\n\n", "---\n...\n", "null\n"]
)
def test_a_file_without_content_is_empty_and_not_wrong(text: str) -> None:
    issues = Issues()
    document = parse("f.yaml", text.encode(), issues)
    assert document.ok
    assert document.root is None
    assert len(issues) == 0


# -- keys, merge keys, aliases


def test_a_key_that_stands_twice_is_refused_with_both_lines() -> None:
    issue = refused("agents:\n  main: {route: fast}\n  a: 1\n  b: 2\n\n\n\n\n  main: {route: slow}\n")
    assert (issue.code, place(issue)) == ("E0106", (9, 3))
    assert "'main'" in issue.message
    assert "line 2" in issue.message
    assert "line 9" in issue.message


def test_all_keys_that_stand_twice_are_reported_at_once() -> None:
    issues = Issues()
    assert read_document("f", b"a: 1\na: 2\nb: {c: 1, 'c': 2}\n", issues) is None
    assert [place(issue) for issue in issues] == [(2, 1), (3, 11)]


def test_an_explicit_key_overrides_a_merged_one_wherever_it_stands() -> None:
    base = "base: &base {x: 1, y: 2}\n"
    assert read(base + "a:\n  <<: *base\n  x: 3\n").plain()["a"] == {"x": 3, "y": 2}
    assert read(base + "a:\n  x: 3\n  <<: *base\n").plain()["a"] == {"x": 3, "y": 2}
    root = read(base + "a: {<<: [*base, {y: 5, z: 6}]}\n")
    assert root.plain()["a"] == {"x": 1, "y": 2, "z": 6}
    assert str(root.at(("a", "y"))) == "f.yaml:1:20"


def test_merging_leaves_what_is_merged_as_it_was() -> None:
    assert read("a: &a {x: 1}\nb: {<<: *a, x: 2, y: 3}\n").plain() == {"a": {"x": 1}, "b": {"x": 2, "y": 3}}


@pytest.mark.parametrize(
    ("text", "code", "where"),
    [
        ("<<: 1\n", "E0111", (1, 1)),
        ("a: &a [x]\nb:\n  <<: *a\n", "E0111", (3, 3)),
        ("a: &a {x: 1}\nb:\n  <<: *a\n  <<: *a\n", "E0106", (4, 3)),
    ],
)
def test_a_merge_key_takes_mappings_and_stands_once(text: str, code: str, where: tuple[int, int]) -> None:
    issue = refused(text)
    assert (issue.code, place(issue)) == (code, where)


def test_a_quoted_merge_key_is_a_key() -> None:
    assert read("'<<': 1\n").plain() == {"<<": 1}
    assert read("a: &a {x: 1}\nb: {<<: *a, '<<x': 2}\n").plain()["b"] == {"x": 1, "<<x": 2}


def test_aliases_share_one_node() -> None:
    root = read(
        "".join(f"a{i}: &a{i} {{x: {i}}}\n" for i in range(5)) + "".join(f"b{i}: *a{i % 5}\n" for i in range(20))
    )
    assert root.plain()["b19"] == {"x": 4}
    assert root.get("b19") is root.get("a4")


def test_an_alias_of_nothing_is_told_with_the_nearest_anchor() -> None:
    issue = refused("base: &default {x: 1}\nb: *defalt\n")
    assert (issue.code, place(issue)) == ("E0110", (2, 4))
    assert "did you mean 'default'?" in (issue.hint or "")


def test_a_missing_anchor_under_a_merge_key_is_one_finding() -> None:
    assert refused("b:\n  <<: *base\n").code == "E0110"


def test_an_alias_inside_its_own_anchor_is_refused() -> None:
    assert place(refused("a: &a\n  b: *a\n")) == (2, 6)


# -- limits


def bomb(levels: int = 9, width: int = 9) -> str:
    lines = ["a0: &a0 [x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels + 1)]
    return "\n".join(lines)


def test_an_alias_bomb_is_refused_at_once() -> None:
    tracemalloc.start()
    began = time.perf_counter()
    issue = refused(bomb())
    took = time.perf_counter() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert issue.code == "E0113"
    assert f"{NODES:,}" in issue.message
    assert took < 0.5
    assert peak < 5_000_000


def test_a_bomb_of_merge_keys_is_refused() -> None:
    wide = ", ".join(f"k{n}: 1" for n in range(1000))
    assert refused(f"a: &a {{{wide}}}\nb: [{', '.join(['{<<: *a}'] * 1000)}]\n").code == "E0113"


def test_nesting_has_a_limit_that_aliases_do_not_get_around() -> None:
    assert read("[" * DEPTH + "]" * DEPTH).is_list
    assert refused("[" * (DEPTH + 1) + "]" * (DEPTH + 1)).code == "E0112"
    chain = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, DEPTH + 1))
    assert refused(chain).code == "E0112"
    assert refused("{a: " * 100_000).code == "E0112"


def test_a_file_has_a_greatest_size() -> None:
    issue = refused(b"#" * (SIZE + 1))
    assert issue.code == "E0103"
    assert parse("f", b"#" * SIZE, Issues()).ok


def test_a_file_full_of_errors_is_not_told_for_ever() -> None:
    issues = Issues()
    read_document("f", b"a: 1\n" * 1000, issues)
    assert len(issues) == ERRORS


# -- encoding


def test_what_is_not_utf_8_is_told_with_the_byte_offset() -> None:
    issue = refused("a: 1\nbü: caf".encode() + b"\xe9\n")
    assert (issue.code, place(issue)) == ("E0102", (2, 8))
    assert "not UTF-8" in issue.message
    assert "byte offset 13" in issue.message
    assert "UTF-16" in (refused("a: 1".encode("utf-16")).hint or "")


@pytest.mark.parametrize("character", ["\0", "\x1b", "\x07", "\x7f", "\x85", "\u2028", "\ufeff", "\uffff"])
def test_invisible_characters_are_named_with_their_place(character: str) -> None:
    issue = refused(f"a: 1\nb: x{character}y\n")
    assert (issue.code, place(issue)) == ("E0104", (2, 5))
    assert f"U+{ord(character):04X}" in issue.message
    assert place(refused(f"a: 1\n{character}")) == (2, 1)


# -- tags


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: !!python/object/apply:os.system [touch /tmp/never]\n", (1, 4)),
        ("a:\n  - !!python/name:os.system\n", (2, 5)),
        ("a: !custom {b: 1}\n", (1, 4)),
        ("a: &x !!str y\n", (1, 7)),
        ("a: !e!x y\n", (1, 4)),
        ("a: ! y\n", (1, 4)),
        ("a: !<tag:yaml.org,2002:int> 1\n", (1, 4)),
        ("!!map\na: 1\n", (1, 1)),
        ("!!str a: 1\n", (1, 1)),
        ("%TAG ! tag:x,2000:\n---\na: 1\n", (1, 1)),
    ],
)
def test_every_tag_is_refused_at_its_place(text: str, where: tuple[int, int]) -> None:
    issue = refused(text)
    assert (issue.code, place(issue)) == ("E0107", where)


# -- natural mistakes


@pytest.mark.parametrize(
    ("text", "code", "where", "words"),
    [
        # references in flow style
        ("a: {k: ${env:X}}\n", "E0114", (1, 8), 'write "${env:X}"'),
        ("a: [${env:X}]\n", "E0114", (1, 5), 'write "${env:X}"'),
        ("a: [b, '${env:Y}',\n  ${credential:KEY}]\n", "E0114", (2, 3), 'write "${credential:KEY}"'),
        ("a: {k: x${file:p}, b: 1}\n", "E0114", (1, 9), "quotes"),
        # stars and other characters
        ("a: *\n", "E0115", (1, 4), 'write "*"'),
        ("cron: */5 * * * *\n", "E0115", (1, 7), 'write "*/5 * * * *"'),
        ("cron: */5 * * * * # every five\n", "E0115", (1, 7), 'write "*/5 * * * *"'),
        ("cron: * 3 * * *\n", "E0115", (1, 7), 'write "* 3 * * *"'),
        ("allow: [*]\n", "E0115", (1, 9), 'write "*"'),
        ("include:\n  - *.yaml\n", "E0115", (2, 5), 'write "*.yaml"'),
        ("a: *read_file\n", "E0110", (1, 4), 'put quotes around it: "*read_file"'),
        ("a: @x\n", "E0115", (1, 4), "put quotes around the whole text"),
        ("a: %x\n", "E0115", (1, 4), "begins with %"),
        ("a: & b\n", "E0115", (1, 4), "& begins an anchor"),
        # quotes
        ('a: "foo\nb: 1\n', "E0117", (1, 4), "never closed"),
        ("a: 'foo\nb: 1\n", "E0117", (1, 4), "never closed"),
        ('a: "foo\nb: "bar"\n', "E0117", (1, 4), "a quote is missing"),
        ("a: 'it's'\n", "E0117", (1, 8), "write '' for a '"),
        ('a: "x" y\n', "E0117", (1, 8), "around the whole text"),
        ('a: "C:\\dir"\n', "E0117", (1, 7), "single quotes"),
        ('a: {b: "x, c: 1}\nd: 2\n', "E0117", (1, 8), "never closed"),
        # spaces
        ("plugins:\n  a: {}\ndaemon:x\n", "E0116", (3, 7), "a space is missing after the colon of 'daemon'"),
        ("log_level:info\n", "E0116", (1, 10), "a space is missing after the colon of 'log_level'"),
        ("plugins:{}\n", "E0116", (1, 8), "a space is missing after the colon"),
        ("daemon:x\nplugins: {}\n", "E0116", (1, 7), "'daemon'"),
        ("p:\n  s:\n    use:foo\n    config: {}\n", "E0116", (3, 8), "'use'"),
        ("a: {b:c}\n", "E0116", (1, 6), "a space is missing"),
        ("a:\n  - x\n  -y\n", "E0116", (3, 3), "after the dash"),
        # lines that do not fit
        ("a: b: c\n", "E0118", (1, 5), "colon"),
        ("a:\n  b: 1\n c: 2\n", "E0118", (3, 2), "indentation"),
        ("a:\n  b: 1\n   c: 2\n", "E0118", (3, 4), "indented deeper"),
        ("a:\n  - x\n  b: 1\n", "E0118", (3, 3), "list item is expected"),
        ("a:\n  b: 1\n  - x\n", "E0118", (3, 3), "a list item among the keys"),
        ("a: 1\njust words\n", "E0118", (2, 1), "neither"),
        ("a: >= 3\n", "E0118", (1, 4), "quotes around text that begins with | or >"),
        ("{a: 1}\nb: 2\n", "E0118", (2, 1), "does not belong"),
        # brackets
        ("a: [1, 2\nb: 3\n", "E0119", (1, 4), "this [ is never closed"),
        ("a: {b: 1\nc: 3\n", "E0119", (1, 4), "this { is never closed"),
        ("a: [1, 2", "E0119", (1, 4), "this [ is never closed"),
        ("a: [", "E0119", (1, 4), "this [ is never closed"),
        ("a: {", "E0119", (1, 4), "this { is never closed"),
        ("a: [1, ", "E0119", (1, 4), "this [ is never closed"),
        ("a:\n  b: {c: [", "E0119", (2, 10), "this [ is never closed"),
        ("a: [1]]\n", "E0119", (1, 7), "a ] without its beginning"),
        ("a: {b: 1 c: 2}\n", "E0119", (1, 10), "a comma or } is expected here"),
        # keys
        ("? [a]\n: b\n", "E0109", (1, 3), "keys are text"),
        ("a: {{ x }}\n", "E0109", (1, 5), "quotes around text that begins with {"),
        ("a: &k x\n*k : 2\n", "E0109", (2, 1), "alias"),
        (": x\n", "E0109", (1, 1), "a key is missing"),
        # documents
        ("a: 1\n---\nb: 2\n", "E0108", (2, 1), "a file holds one"),
        ("a: 1\n...\nb: 2\n", "E0108", (3, 1), "a file holds one"),
        ("%YAML 1.1\n---\na: 1\n", "E0108", (1, 1), "YAML 1.2"),
    ],
)  # fmt: skip
def test_natural_mistakes_have_their_own_words(text: str, code: str, where: tuple[int, int], words: str) -> None:
    issue = refused(text)
    assert (issue.code, place(issue)) == (code, where)
    assert words in f"{issue.message}\n{issue.hint}"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a:\n\tb: 1\n", (2, 1)),
        ("a:\n  b: 1\n\tc: 2\n", (3, 1)),
        ("a:\n  \tb: 1\n", (2, 3)),
        ("\ta: 1\n", (1, 1)),
        ("a: |\n\tx\n", (2, 1)),
        ("a:\n\t- x\n", (2, 1)),
        ("a:\n  - b\n\t- c\n", (3, 1)),
        ("a:\n  -\tb: 1\n", (2, 4)),
    ],
)
def test_a_tab_in_the_indentation_is_called_a_tab(text: str, where: tuple[int, int]) -> None:
    issue = refused(text)
    assert (issue.code, place(issue)) == ("E0105", where)
    assert "tab" in issue.message


def test_a_tab_that_yaml_allows_is_no_mistake() -> None:
    assert read("a:\t1\nb: {\n\tc: 2}\nd: 'x\ty'\n").plain() == {"a": 1, "b": {"c": 2}, "d": "x\ty"}


def test_references_stand_unquoted_in_block_style() -> None:
    root = read("a: ${env:X:-no}\nb:\n  - ${file:p/q.md}\nc: $${A}\n")
    assert root.plain() == {"a": "${env:X:-no}", "b": ["${file:p/q.md}"], "c": "$${A}"}


def test_passwords_are_not_repeated_in_messages() -> None:
    for text in (
        "key: @hunter2\n",
        "key: %hunter2\n",
        "key: *!hunter2\n",
        "key: 'hunter2' x\n",
        "key: !hunter2x y z\n",
    ):
        issue = refused(text)
        assert "hunter2 " not in f"{issue.message} {issue.hint} "
        assert "hunter2'" not in f"{issue.message} {issue.hint} " or issue.code == "E0107"


# -- properties


plain_data = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=12),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text("abcxyz-_ :#", min_size=1, max_size=6), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text("abcxyz", min_size=1), plain_data, min_size=1, max_size=5), st.sampled_from([None, 1]))
def test_json_is_read_as_what_it_says(data: dict[str, object], indent: int | None) -> None:
    assert read(json.dumps(data, ensure_ascii=False, indent=indent)).plain() == data


def test_random_edits_of_a_document_only_ever_give_issues() -> None:
    text = (
        "bundles: [core]\nplugins:\n  a: &a {use: x, config: {k: [1, 'two', \"three\"]}}\n  b:\n    <<: *a\n"
        "    optional: true # really\n  c: |\n    text\n"
    )
    rng = random.Random(7)
    for _ in range(1500):
        edited = text
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(edited) + 1)
            piece = rng.choice(["", ": ", "- ", "<<: ", *"{}[]:\n\t'\"*&!#|%?é\0"])
            edited = edited[:at] + piece + edited[at + rng.randrange(3) :]
        issues = Issues()
        document = parse("f.yaml", edited.encode(), issues)
        assert document.ok == (not issues.errors)
        lines = edited.splitlines()
        for issue in issues:
            assert issue.line is not None
            assert 1 <= issue.line <= len(lines) + 1, edited
            assert issue.col is not None
            assert issue.col >= 1


def test_a_thousand_agents_are_read_quickly() -> None:
    text = "agents:\n" + "".join(
        f"  agent-{n}:\n    extends: base\n    persona: You are number {n}.\n    tools: {{allow: [shell, 'read_*']}}\n"
        f"    model: deepseek-chat\n    workspace: /srv/{n}\n"
        for n in range(1000)
    )
    best = 9.0
    for _ in range(5):
        began = time.perf_counter()
        root = read(text)
        best = min(best, time.perf_counter() - began)
    assert len(root.mapping()["agents"].mapping()) == 1000
    assert best < 0.15


def test_every_code_is_documented_and_every_documented_code_is_used() -> None:
    root = Path(__file__).parent.parent.parent
    used = {
        code
        for path in (root / "dshd/loader").glob("*.py")
        for code in re.findall(r'"(0[12][0-9]{2})"', path.read_text())
    }
    documented = set(re.findall(r"^\| [EW](0[12][0-9]{2}) \|", (root / "docs/errors.md").read_text(), re.MULTILINE))
    assert used == documented

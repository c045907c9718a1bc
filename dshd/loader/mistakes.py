"""Syntax errors in the words of who made them: what a line probably was meant to be, and how to write it.

The parser says what it expected at the place where it gave up. Here the place and the text around it are compared with
the mistakes that people make in such files; only what none of them explains is told in the parser's words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import yaml
from yaml.events import ScalarEvent

MISSING_SPACE = re.compile(r"(?P<key>[A-Za-z_][\w./-]*):(?=[^\s:/])")
"""Text that looks like `key:value`; not `http://host` and not `a::b`."""

SPACE_HINT = "write `key: value`, or put quotes around the whole if it is text"
_REFERENCE = re.compile(r"\$\{[^}\n]*\}?")


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """What to report; line and column count from 1."""

    code: str
    line: int
    col: int
    message: str
    hint: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Scene:
    """A syntax error with its surroundings; lines and columns count from 0 as the parser's do."""

    problem: str
    context: str
    line: int
    col: int
    begun: tuple[int, int] | None
    """Where the thing began that could not be finished."""
    lines: Sequence[str]
    last: ScalarEvent | None
    """The scalar before the error."""
    opened: tuple[int, int] | None
    """The innermost `{` or `[` that is open."""

    @property
    def flow(self) -> bool:
        return self.opened is not None

    def text(self, line: int) -> str:
        return self.lines[line] if line < len(self.lines) else ""

    @property
    def here(self) -> str:
        return self.text(self.line)

    @property
    def char(self) -> str:
        return self.here[self.col : self.col + 1]

    @property
    def start(self) -> tuple[int, int]:
        """Where it began, or where it ended if the parser does not say."""
        return self.begun or (self.line, self.col)

    def at(self, code: str, place: tuple[int, int], message: str, hint: str | None = None) -> Mistake:
        return Mistake(code=code, line=place[0] + 1, col=place[1] + 1, message=message, hint=hint)


def explain(
    error: yaml.MarkedYAMLError,
    lines: Sequence[str],
    last: ScalarEvent | None = None,
    opened: tuple[int, int] | None = None,
) -> Mistake:
    """The mistake behind an error of the parser, given the scalar before it and the innermost open `{` or `[`."""
    mark, context = error.problem_mark, error.context_mark
    scene = _Scene(
        problem=error.problem or "",
        context=error.context or "",
        line=mark.line if mark is not None else 0,
        col=mark.column if mark is not None else 0,
        begun=None if context is None else (context.line, context.column),
        lines=lines,
        last=last,
        opened=opened,
    )
    for known in (_tab, _reference, _reserved, _tag, _quote, _after_quote, _space, _colons, _bracket, _block, _other):
        found = known(scene)
        if found is not None:
            return found
    about = f"{scene.problem} {scene.context}".strip()
    return scene.at("0120", (scene.line, scene.col), f"not valid YAML here: {about}")


def _tab(scene: _Scene) -> Mistake | None:
    indent = scene.here[: len(scene.here) - len(scene.here.lstrip())]
    if scene.char != "\t" and "\t" not in indent and "tab character" not in scene.problem:
        return None
    col = indent.index("\t") if "\t" in indent else scene.col
    return scene.at("0105", (scene.line, col), "a tab stands where YAML wants spaces", "indent with spaces")


def _reference(scene: _Scene) -> Mistake | None:
    if scene.char != "{" or scene.here[scene.col - 1 : scene.col] != "$" or not scene.flow:
        return None
    found = _REFERENCE.match(scene.here, scene.col - 1)
    reference = found[0] if found else "${…}"
    return scene.at(
        "0114",
        (scene.line, scene.col - 1),
        "a reference inside { } or [ ] needs quotes, for { would begin a mapping",
        f'write "{reference}"',
    )


def _reserved(scene: _Scene) -> Mistake | None:
    line, col = scene.start
    char = scene.text(line)[col : col + 1]
    if scene.context == "while scanning an alias":
        rest = scene.text(line)[col:]
        end = re.search(r"[,\]}]|\s#|$" if scene.flow else r"\s#|$", rest)
        value = rest[: end.start() if end else None].strip()
        # only what looks like a pattern or a schedule is shown: a password may begin with * as well
        hint = f'write "{value}"' if re.fullmatch(r"[\w*/., -]+", value) else "put quotes around the whole text"
        return scene.at("0115", (line, col), "* begins an alias in YAML; as text it needs quotes", hint)
    if scene.context == "while scanning an anchor":
        message = "& begins an anchor in YAML; as text it needs quotes"
    elif "cannot start any token" in scene.problem:
        message = f"text that begins with {char} needs quotes"
    else:
        return None
    return scene.at("0115", (line, col), message, "put quotes around the whole text")


def _tag(scene: _Scene) -> Mistake | None:
    if "tag" in scene.context or "tag handle" in scene.problem:
        line, col = scene.start
        found = scene.text(line).find("!", col)
        place = (line, found if found >= 0 else col)
        return scene.at(
            "0107", place, "a tag is refused; configuration has no tags", "put quotes around text that begins with !"
        )
    if "directive" in scene.context or "directive" in scene.problem:
        return scene.at("0108", scene.start, "a line that begins with % is a directive; remove it")
    if "<document start>" in scene.problem:
        if any(line.startswith("...") for line in scene.lines[: scene.line]):
            return scene.at("0108", (scene.line, scene.col), "a second document begins here; a file holds one")
        hint = "a file is one mapping of `key: value`; a { } or a quote may have ended too soon"
        return scene.at("0118", (scene.line, scene.col), "this does not belong to what stands above it", hint)
    return None


def _quote(scene: _Scene) -> Mistake | None:
    if "quoted scalar" not in scene.context:
        return None
    if "escape" in scene.problem or "hexdecimal" in scene.problem:
        hint = "write \\\\ for a backslash, or use single quotes, in which it is an ordinary character"
        return scene.at("0117", (scene.line, scene.col), "not an escape that double quotes know", hint)
    return scene.at("0117", scene.start, "this quote is never closed", "close it at the end of the text")


def _after_quote(scene: _Scene) -> Mistake | None:
    """Text right after a closing quote: the quote ended sooner or later than was meant."""
    last = scene.last
    if last is None or last.style not in ("'", '"') or last.start_mark is None or last.end_mark is None:
        return None
    end = last.end_mark.line, last.end_mark.column
    if "did not find expected" not in scene.problem or not _only_blanks(scene, end) or scene.char in ("", ":"):
        return None
    begun = last.start_mark.line, last.start_mark.column
    if begun[0] != end[0]:
        message = f"the text that this quote opens ends only on line {end[0] + 1}, and more follows: a quote is missing"
        return scene.at("0117", begun, message, "close it at the end of the text")
    if scene.char in ('"', "'") and scene.flow:
        return None
    hint = "put the quotes around the whole text"
    if last.style == "'" and scene.col == end[1]:
        hint = "write '' for a ' inside single quotes, or use double quotes"
    elif last.style == '"' and scene.col == end[1]:
        hint = 'write \\" for a " inside double quotes, or use single quotes'
    return scene.at("0117", (scene.line, scene.col), "text goes on after the closing quote", hint)


def _only_blanks(scene: _Scene, place: tuple[int, int]) -> bool:
    """Whether nothing but spaces stands between a place and the error, both in one line."""
    return place[0] == scene.line and not scene.here[place[1] : scene.col].strip()


def _space(scene: _Scene) -> Mistake | None:
    """`key:value` and `-item`, taken for the beginning of a text."""
    if "simple key" in scene.context:
        line, col = scene.start
    elif "mapping values are not allowed" in scene.problem and scene.last is not None and scene.last.start_mark:
        line, col = scene.last.start_mark.line, scene.last.start_mark.column
        if line == scene.line or scene.last.style:
            return None
    else:
        return None
    text = scene.text(line)[col:]
    if found := MISSING_SPACE.match(text):
        place = (line, col + found.end("key"))
        return scene.at("0116", place, f"a space is missing after the colon of {found['key']!r}", SPACE_HINT)
    if re.match(r"-[^\s-]", text):
        return scene.at("0116", (line, col), "a space is missing after the dash", "write `- item`")
    if "simple key" in scene.context:
        hint = "write `key: value`; text of several lines is indented under its key"
        return scene.at("0118", (line, col), "neither `key: value` nor a list item", hint)
    message = "this line is indented deeper than the one before, so that it continues its text"
    shown = scene.here
    return scene.at("0118", (scene.line, len(shown) - len(shown.lstrip())), message, "indent it like its neighbours")


def _colons(scene: _Scene) -> Mistake | None:
    if "mapping values are not allowed" not in scene.problem:
        return None
    if scene.col > 1024:
        return scene.at("0118", (scene.line, 0), "a key is longer than 1,024 characters")
    hint = "put quotes around text that contains `: `, or begin a mapping on the next line"
    return scene.at("0118", (scene.line, scene.col), "a colon where none is expected", hint)


def _bracket(scene: _Scene) -> Mistake | None:
    """`[` and `{` without their end, or without a comma."""
    if "flow" not in scene.context or "expected" not in scene.problem:
        return None
    line, col = scene.start
    if scene.line >= len(scene.lines) and scene.opened is not None:  # the file ends where a value might begin
        line, col = scene.opened
    opened = scene.text(line)[col : col + 1] or "{"
    close = "]" if opened == "[" else "}"
    if scene.line >= len(scene.lines) or (scene.line > line and scene.char in (":", "-") and scene.char != close):
        return scene.at("0119", (line, col), f"this {opened} is never closed", f"write {close} at its end")
    place = (scene.line, scene.col)
    last = scene.last
    if (
        last is not None
        and not last.style
        and last.end_mark
        and _only_blanks(scene, (scene.line, last.end_mark.column))
    ):
        word = last.value.rpartition(" ")[2]
        if scene.char == ":" and word != last.value:
            place = (scene.line, last.end_mark.column - len(word))
    return scene.at("0119", place, f"a comma or {close} is expected here", f"the {opened} stands on line {line + 1}")


def _block(scene: _Scene) -> Mistake | None:
    """Lines that do not fit the block they stand in."""
    if "block scalar" in scene.context:
        hint = "begin the text on the next line, or put quotes around text that begins with | or >"
        return scene.at("0118", scene.start, "text follows | or > on the same line", hint)
    if "block" not in scene.context:
        return None
    place = (scene.line, scene.col)
    if scene.char in ("]", "}", ","):
        return scene.at("0119", place, f"a {scene.char} without its beginning")
    if scene.char == ":":
        return scene.at("0109", place, "a key is missing before the colon")
    begun = scene.begun
    if begun is None or scene.line == begun[0]:
        return None
    block = f"the block that begins on line {begun[0] + 1} stands in column {begun[1] + 1}"
    if "'-' indicator" in scene.problem:
        return scene.at("0118", place, f"a list item is expected; {block}", "begin it with `- `")
    if scene.here[scene.col :].startswith(("- ", "-\n")) or scene.here[scene.col :] == "-":
        return scene.at(
            "0118", place, f"a list item among the keys of a mapping; {block}", "a mapping has `key: value`"
        )
    return scene.at("0118", place, f"the indentation fits no block above; {block}", "indent it like its neighbours")


def _other(scene: _Scene) -> Mistake | None:
    if "nesting depth" in scene.problem:
        return scene.at("0112", (scene.line, scene.col), "nested too deeply")
    if "mapping keys are not allowed" in scene.problem:
        hint = "put quotes around text that begins with `? `"
        return scene.at("0109", (scene.line, scene.col), "`? ` begins a key in YAML", hint)
    if "expected node content" in scene.problem:
        return scene.at("0119", (scene.line, scene.col), f"a value is expected here, not {scene.char or 'the end'!r}")
    return None

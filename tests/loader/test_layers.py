"""Composition: sections, includes, layers, overlays and rows, on real files."""

import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dshd.loader import includes
from dshd.loader.files import Disk, Files, Recorded, Stored, is_junk
from dshd.loader.issues import Issue, Issues, render
from dshd.loader.layers import compose
from dshd.loader.row import Row, Tree

ROOT = "dshd.yaml"


def write(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def composed(directory: Path, *roots: str, files: Files | None = None) -> tuple[Tree, Issues]:
    issues = Issues()
    paths = [str(directory / root) for root in roots or (ROOT,)]
    return compose(files if files is not None else Disk(), paths, issues), issues


def tree(directory: Path, files: dict[str, str] | str, *roots: str) -> Tree:
    """The tree of files without findings."""
    write(directory, {ROOT: files} if isinstance(files, str) else files)
    found, issues = composed(directory, *roots)
    assert [render(issue) for issue in issues] == []
    return found


def finding(directory: Path, files: dict[str, str] | str, *roots: str) -> Issue:
    """The only finding of files."""
    write(directory, {ROOT: files} if isinstance(files, str) else files)
    _, issues = composed(directory, *roots)
    assert len(issues) == 1, [render(issue) for issue in issues]
    return next(iter(issues))


def at(issue: Issue) -> str:
    return f"{Path(issue.file or '').name}:{issue.line}:{issue.col}"


def shown(row: Row) -> dict[str, Any]:
    """What a row says, without places."""
    return {
        "use": row.use,
        "config": row.config.plain(),
        "inject": [name for name, _ in row.inject],
        "isolate": list(row.isolate),
        "intercept": [(name, layer.plain()) for name, layer in row.intercept],
        "optional": row.optional,
        "disabled": row.disabled and row.disabled.plain(),
        "agent": row.agent,
    }


def data(found: Tree) -> dict[str, Any]:
    """All that a tree says, without places."""
    return {
        "rows": {path: shown(row) for path, row in found.rows.items()},
        "templates": {name: node.plain() for name, node in found.templates.items()},
        "settings": found.settings and found.settings.plain(),
        "daemon": found.daemon and found.daemon.plain(),
    }


# -- rows


def test_a_row_says_its_plugin_and_config_and_where(tmp_path: Path) -> None:
    found = tree(
        tmp_path,
        "plugins:\n  shell:\n    use: shell_local\n    config: {timeout: 60s}\n    inject: [metrics]\n"
        "    optional: true\n"
        "    disabled: ${env:X:-false}\n    intercept: {llm: {max_tokens: 4}}\n  bare:\n",
    )
    row = found.rows["shell"]
    assert shown(row) == {
        "use": "shell_local", "config": {"timeout": "60s"}, "inject": ["metrics"], "isolate": [], "optional": True,
        "intercept": [("llm", {"max_tokens": 4})], "disabled": "${env:X:-false}", "agent": False,
    }  # fmt: skip
    assert str(row.mark) == f"{tmp_path}/dshd.yaml:2:3"
    assert str(row.use_mark) == f"{tmp_path}/dshd.yaml:3:10"
    assert str(row.config.at(("timeout",))) == f"{tmp_path}/dshd.yaml:4:14"
    assert row.base == str(tmp_path)
    assert (found.rows["bare"].use, found.rows["bare"].config.plain()) == ("bare", {})


def test_rows_inherit_from_their_groups(tmp_path: Path) -> None:
    found = tree(
        tmp_path,
        """
plugins:
  night:
    group:
      inner:
        group:
          shell: {use: shell_local, isolate: {store: batch}, inject: [b, c], intercept: {llm: {k: 2}}, optional: false}
        isolate: {llm: null}
      janitor: {inject: [a]}
    isolate: [shell, llm]
    intercept: {llm: {k: 1}}
    inject: [a, b]
    optional: true
    disabled: true
""",
    )
    assert list(found.rows) == ["night/inner/shell", "night/janitor"]
    shell = found.rows["night/inner/shell"]
    assert shell.isolate == (
        ("shell", None, "night"), ("llm", None, "night"), ("llm", None, "night/inner"),
        ("store", "batch", "night/inner/shell"),
    )  # fmt: skip
    assert [(name, layer.plain()) for name, layer in shell.intercept] == [("llm", {"k": 1}), ("llm", {"k": 2})]
    assert [name for name, _ in shell.inject] == ["a", "b", "c"]
    assert not shell.optional
    assert found.rows["night/janitor"].optional
    assert shell.disabled is not None
    assert shell.disabled.value is True


def test_a_group_that_is_disabled_disables_whatever_its_rows_say(tmp_path: Path) -> None:
    found = tree(
        tmp_path,
        """
plugins:
  a: {group: {x: {disabled: false}, y: {disabled: "${env:Y}"}}, disabled: true}
  b: {group: {x: {disabled: false}, y: {disabled: "${env:Y}"}, z: {}}, disabled: "${env:B}"}
  c: {group: {x: {disabled: true}, y: {}}, disabled: false}
""",
    )
    said = {
        path: (row.disabled and row.disabled.value, [node.value for node in row.disabled_too])
        for path, row in found.rows.items()
    }
    assert said == {
        "a/x": (True, []), "a/y": (True, []), "b/x": ("${env:B}", []), "b/y": ("${env:Y}", ["${env:B}"]),
        "b/z": ("${env:B}", []), "c/x": (True, []), "c/y": (False, []),
    }  # fmt: skip


def test_agents_are_rows_whose_config_is_the_definition(tmp_path: Path) -> None:
    found = tree(
        tmp_path,
        "agents:\n  ops:\n    extends: base\n    persona: hi\n    optional: true\n    isolate: {shell: batch}\n"
        "    inject: [metrics]\n    disabled: false\n  idle:\ntemplates:\n  base: {route: x}\n  none:\n",
    )
    ops = found.rows["agents/ops"]
    assert (ops.use, ops.agent, ops.config.plain()) == ("agent", True, {"extends": "base", "persona": "hi"})
    assert (ops.optional, ops.isolate, ops.inject[0][0]) == (True, (("shell", "batch", "agents/ops"),), "metrics")
    assert str(ops.config.at(("persona",))).endswith(":4:5")
    assert found.rows["agents/idle"].config.plain() == {}
    assert {name: node.plain() for name, node in found.templates.items()} == {"base": {"route": "x"}, "none": {}}


# -- mistakes in rows


@pytest.mark.parametrize(
    ("text", "code", "where", "words"),
    [
        ("plugin:\n  a: {}\n", "E0201", "1:1", "did you mean 'plugins'?"),
        ("shell: {use: shell_local}\n", "E0201", "1:1", "rows stand under plugins:"),
        ("- use: x\n", "E0202", "1:1", "a mapping of sections, and this is a list"),
        ("hello\n", "E0202", "1:1", "this is text"),
        ("plugins:\n  - use: x\n", "E0202", "2:3", "plugins is a list where a mapping belongs"),
        ("settings: [a]\n", "E0202", "1:11", "settings is a list"),
        ("plugins:\n  a: [x]\n", "E0202", "2:6", "a is a list where a row, which is a mapping, belongs"),
        ("plugins:\n  a: use:x\n", "E0202", "2:6", "a space may be missing"),
        ("plugins:\n  a: {config: [x]}\n", "E0202", "2:15", "a.config is a list where a mapping belongs"),
        ("plugins:\n  a: {intercept: [x]}\n", "E0202", "2:18", "a.intercept is a list"),
        ("plugins:\n  a: {intercept: {llm: 1}}\n", "E0202", "2:24", "a.intercept.llm is a number"),
        ("plugins:\n  a: {group: [x]}\n", "E0202", "2:14", "a.group is a list"),
        ("plugins:\n  a: {inject: {x: 1}}\n", "E0203", "2:15", "a.inject is a mapping where a list"),
        ("plugins:\n  a: {inject: x}\n", "E0203", "2:15", "write [x]"),
        ("plugins:\n  a: {isolate: x}\n", "E0203", "2:16", "write [x]"),
        ("plugins:\n  a:\n    inject:\n      -x\n", "E0203", "4:7", "a space is missing after the dash"),
        ("plugins:\n  a: {inject: [1]}\n", "E0204", "2:16", "a number where a name belongs"),
        ("plugins:\n  a: {isolate: {x: [y]}}\n", "E0204", "2:20", "where the name of a realm belongs"),
        ("plugins:\n  a: {confg: {}}\n", "E0214", "2:7", "did you mean 'config'?"),
        ("plugins:\n  a: {supressErrors: true}\n", "E0214", "2:7", "fields of its plugin stand under config:"),
        ("plugins:\n  a: {if_exists: true}\n", "E0214", "2:7", "no key 'if_exists'"),
        ("plugins:\n  A b: {}\n", "E0212", "2:3", "'a-b' would do"),
        ("plugins:\n  " + "x" * 64 + ": {}\n", "E0212", "2:3", "cannot be an id"),
        ("plugins:\n  g: {group: {a/b: {}}}\n", "E0212", "2:15", "cannot be an id"),
        ("plugins:\n  agents: {}\n", "E0213", "2:3", "reserved"),
        ("plugins:\n  a: {use: 5}\n", "E0215", "2:12", "use is a number"),
        ("plugins:\n  a: {use: ''}\n", "E0215", "2:12", "an empty text"),
        ("plugins:\n  a: {optional: yes}\n", "E0215", "2:17", "write true or false"),
        ("plugins:\n  a: {disabled: yes}\n", "E0215", "2:17", "write true or false"),
        ("plugins:\n  a: {group: {b: {}}, use: x}\n", "E0217", "2:23", "a group has no use"),
        ("plugins:\n  a: {group: {b: {}}, config: {}}\n", "E0217", "2:23", "a group has no config"),
        ("agents:\n  a: {use: agent}\n", "E0218", "2:7", "has no use"),
        ("agents:\n  a: {config: {model: x}}\n", "E0218", "2:7", "one level up"),
        ("agents:\n  a: hello\n", "E0202", "2:6", "agents/a is text where a definition"),
        ("templates:\n  a: [x]\n", "E0202", "2:6", "templates.a is a list"),
        ("bundles: [cor]\n", "E0211", "1:11", "did you mean 'core'?"),
        ("bundles: {core: true}\n", "E0203", "1:10", "bundles is a mapping"),
    ],
)
def test_mistakes_are_told_at_their_place(tmp_path: Path, text: str, code: str, where: str, words: str) -> None:
    issue = finding(tmp_path, text)
    assert (issue.code, at(issue)) == (code, f"dshd.yaml:{where}")
    assert words in f"{issue.message}\n{issue.hint}"


def test_all_mistakes_are_told_at_once_and_the_rest_is_made(tmp_path: Path) -> None:
    write(tmp_path, {ROOT: "plugin: {}\nplugins:\n  a: {use: 1}\n  b: [x]\n  c: {}\nagents: []\n"})
    found, issues = composed(tmp_path)
    assert [issue.code for issue in issues] == ["E0201", "E0215", "E0202", "E0202"]
    assert list(found.rows) == ["a", "c"]


# -- empty layers


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n", "plugins:\nagents:\noverlays:\ninclude:\nbundles:\n"])
def test_an_empty_file_is_an_empty_layer(tmp_path: Path, text: str) -> None:
    found = tree(tmp_path, {ROOT: "plugins: {a: {}}\n", "over.yaml": text}, ROOT, "over.yaml")
    assert list(found.rows) == ["a"]


# -- includes


def test_includes_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    found = tree(
        tmp_path,
        {
            ROOT: "include: [conf.d/*.yaml, one.yaml]\n",
            "conf.d/b.yaml": "plugins: {b: {use: ./b.py}}\ninclude: more/x.yaml\n",
            "conf.d/a.yaml": "agents: {a: {}}\n",
            "conf.d/more/x.yaml": "plugins: {x: {}}\n",
            "one.yaml": "plugins: {one: {}}\n",
        },
    )
    assert list(found.rows) == ["agents/a", "b", "one", "x"]
    assert found.rows["b"].base == str(tmp_path / "conf.d")
    assert found.sources[0] == str(tmp_path / ROOT)
    assert {Path(source).name for source in found.sources} == {ROOT, "a.yaml", "b.yaml", "x.yaml", "one.yaml"}
    assert str(tmp_path / "conf.d") in found.directories
    assert found.texts[str(tmp_path / "one.yaml")] == "plugins: {one: {}}\n"
    assert found.via[str(tmp_path / "conf.d/more/x.yaml")] == (
        str(tmp_path / "conf.d/b.yaml"), str(tmp_path / ROOT),
    )  # fmt: skip


def test_files_are_named_as_the_user_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path,
        {ROOT: f"include: [conf.d/*.yaml, {tmp_path}/x.yaml]\n", "conf.d/a.yaml": "a: 1\n", "x.yaml": "x: 1\n"},
    )
    monkeypatch.chdir(tmp_path)
    issues = Issues()
    found = compose(Disk(), [ROOT], issues)
    assert [(issue.file, issue.via) for issue in issues] == [
        (f"{tmp_path}/x.yaml", (ROOT,)),
        ("conf.d/a.yaml", (ROOT,)),
    ]
    assert found.sources == (str(tmp_path / ROOT), str(tmp_path / "conf.d/a.yaml"), str(tmp_path / "x.yaml"))
    assert set(found.texts) == {ROOT, "conf.d/a.yaml", f"{tmp_path}/x.yaml"}


def test_a_pattern_may_match_nothing_and_a_plain_name_must_exist(tmp_path: Path) -> None:
    found = tree(tmp_path, "include: [conf.d/*.yaml, '*/deep/*.yaml', '**/z.yaml']\n")
    assert str(tmp_path / "conf.d") in found.directories
    issue = finding(tmp_path, "include:\n  - missing.yaml\n")
    assert (issue.code, at(issue)) == ("E0207", "dshd.yaml:2:5")
    assert "missing.yaml: no such file" in issue.message
    (tmp_path / "d").mkdir()
    assert "d/*.yaml" in (finding(tmp_path, "include: d\n").hint or "")


def test_directories_in_which_a_match_could_appear_are_known(tmp_path: Path) -> None:
    for name in ("conf/a", "conf/b/c", "x[1]"):
        (tmp_path / name).mkdir(parents=True)
    found = tree(tmp_path, "include: ['conf/*/*.yaml', 'conf/**/*.yml']\n")
    assert set(found.directories) >= {str(tmp_path / name) for name in ("conf", "conf/a", "conf/b", "conf/b/c")}
    write(tmp_path, {"x[1]/r.yaml": "include: ['*.yml', 'sub/*/*.yml']\n", "x[1]/a.yml": "plugins: {a: {}}\n"})
    (tmp_path / "x[1]/sub/one").mkdir(parents=True)
    other, issues = composed(tmp_path, "x[1]/r.yaml")
    assert not len(issues)
    assert list(other.rows) == ["a"]
    assert set(other.directories) == {str(tmp_path / name) for name in ("x[1]", "x[1]/sub", "x[1]/sub/one")}


def test_files_that_include_each_other_are_refused(tmp_path: Path) -> None:
    issue = finding(
        tmp_path, {ROOT: "include: [a.yaml]\n", "a.yaml": "include: b.yaml\n", "b.yaml": "include: [a.yaml]\n"}
    )
    assert (issue.code, at(issue)) == ("E0208", "b.yaml:1:11")
    assert re.search(r"a\.yaml → .*b\.yaml → .*a\.yaml", issue.message)
    assert issue.via == (str(tmp_path / "a.yaml"), str(tmp_path / ROOT))
    assert finding(tmp_path, f"include: [{ROOT}]\n").code == "E0208"


def test_a_pattern_that_matches_its_own_file_includes_the_others(tmp_path: Path) -> None:
    assert list(tree(tmp_path, {ROOT: "include: ['*.yaml']\n", "a.yaml": "plugins: {a: {}}\n"}).rows) == ["a"]


def test_a_file_counts_once_however_often_it_is_named(tmp_path: Path) -> None:
    files = {
        ROOT: "include: [a.yaml, '*.yml', b.yml]\n",
        "a.yaml": "include: b.yml\n",
        "b.yml": "settings: {x: {y: 1}}\n",
    }
    assert data(tree(tmp_path, files))["settings"] == {"x": {"y": 1}}
    write(tmp_path, files | {"two.yaml": "include: b.yml\nsettings: {x: {y: 2}}\n"})
    found, issues = composed(tmp_path, ROOT, "two.yaml")
    assert not len(issues)
    assert data(found)["settings"] == {"x": {"y": 2}}


def test_junk_of_editors_and_hidden_files_never_count(tmp_path: Path) -> None:
    junk = [
        "b.yaml~",
        ".b.yaml.swp",
        "4913",
        ".#b.yaml",
        "#b.yaml#",
        "b.yaml.tmp",
        "b.yaml.bak",
        "b.yaml.orig",
        ".h.yaml",
    ]
    write(tmp_path, {ROOT: "include: ['conf.d/*', 'conf.d/.*']\n", "conf.d/a.yaml": "plugins: {a: {}}\n"})
    before, _ = composed(tmp_path)
    write(tmp_path, {f"conf.d/{name}": "{{{ broken" for name in junk})
    (tmp_path / "conf.d/directory.yaml").mkdir()
    found, issues = composed(tmp_path)
    assert not len(issues)
    assert data(found) == data(before)
    assert all(is_junk(name) for name in junk)
    assert not is_junk("/.hidden/a.yaml")


def test_a_link_that_leads_nowhere_is_told_if_it_matches(tmp_path: Path) -> None:
    write(tmp_path, {ROOT: "include: conf.d/*.yaml\n", "conf.d/a.yaml": "plugins: {a: {}}\n"})
    (tmp_path / "conf.d/notes.txt").symlink_to("gone.txt")
    assert not len(composed(tmp_path)[1])
    (tmp_path / "conf.d/c.yaml").symlink_to("gone.yaml")
    _, issues = composed(tmp_path)
    [issue] = issues
    assert (issue.code, at(issue)) == ("E0207", "dshd.yaml:1:10")
    assert "conf.d/c.yaml: is a link to 'gone.yaml', which does not exist" in issue.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_that_may_not_be_listed_is_no_empty_one(tmp_path: Path) -> None:
    write(tmp_path, {ROOT: "include: conf.d/*.yaml\n", "conf.d/a.yaml": "plugins: {a: {}}\n"})
    (tmp_path / "conf.d").chmod(0)
    try:
        assert finding(tmp_path, "include: conf.d/*.yaml\n").code == "E0207"
    finally:
        (tmp_path / "conf.d").chmod(0o700)


def test_what_cannot_be_listed_is_told(tmp_path: Path) -> None:
    class Closed(Disk):
        def glob(self, pattern: str) -> list[str]:
            raise PermissionError(13, "Permission denied", pattern)

    write(tmp_path, {ROOT: "include: conf.d/*.yaml\n"})
    recorded = Recorded(Closed())
    _, issues = composed(tmp_path, files=recorded)
    assert [issue.code for issue in issues] == ["E0207"]
    _, again = composed(tmp_path, files=Stored.from_json(recorded.to_json()))
    assert list(again) == list(issues)


def test_links_in_a_circle_come_to_an_end(tmp_path: Path) -> None:
    (tmp_path / "sub").symlink_to(".")
    write(tmp_path, {ROOT: "include: ['sub/*.yaml']\n"})
    _, issues = composed(tmp_path)
    assert {issue.code for issue in issues.errors} == {"E0209"}


def test_a_reference_or_a_nameless_file_cannot_be_included(tmp_path: Path) -> None:
    assert finding(tmp_path, "include: ['${env:X}/a.yaml']\n").code == "E0210"
    assert finding(tmp_path, 'include: ["a\\0b"]\n').code == "E0204"
    assert finding(tmp_path, 'include: ["a\\0*"]\n').code == "E0204"


def test_a_root_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    _, issues = composed(tmp_path, "none.yaml")
    [issue] = issues
    assert issue.code == "E0101"
    assert "none.yaml: no such file" in issue.message


# -- two places for one thing


def test_one_id_in_two_places_names_both_and_their_plugins(tmp_path: Path) -> None:
    issue = finding(
        tmp_path,
        {
            ROOT: "include: conf.d/*.yaml\nplugins:\n  storage: {use: store_sqlite}\n",
            "conf.d/z.yaml": "# second\nplugins: {storage: {use: store_jsonl}}\n",
        },
    )
    assert (issue.code, at(issue)) == ("E0205", "z.yaml:2:11")
    for words in (f"{tmp_path}/dshd.yaml:3:3", "z.yaml:2:11", "store_sqlite", "store_jsonl", "'storage'"):
        assert words in issue.message
    assert "overlays" in (issue.hint or "")


@pytest.mark.parametrize("section", ["plugins", "agents", "templates"])
def test_one_id_in_two_layers_is_refused_as_well(tmp_path: Path, section: str) -> None:
    first, second = (
        f"{section}: {{x: {{{'config: ' if section == 'plugins' else 'k: '}{{a: {n}}}}}}}\n" for n in (1, 2)
    )
    issue = finding(tmp_path, {ROOT: first, "b": second}, ROOT, "b")
    assert (issue.code, issue.severity) == ("E0205", "error")


def test_identical_content_in_two_places_is_one_warning_and_one_row(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ROOT: "include: b.yaml\nplugins: {s: {use: x, config: {a: 1, b: [t]}}}\n",
            "b.yaml": "plugins:\n  s:\n    config: {b: ['t'], a: 1}\n    use: x\n",
        },
    )
    found, issues = composed(tmp_path)
    assert [issue.code for issue in issues] == ["W0205"]
    assert list(found.rows) == ["s"]


@pytest.mark.parametrize(
    ("first", "second"), [("1", "true"), ("1", "1.0"), ("1", "'1'"), ("[a]", "[a, b]"), ("{}", "[]")]
)
def test_values_of_different_types_are_not_identical(tmp_path: Path, first: str, second: str) -> None:
    files = {
        ROOT: f"include: b\nplugins: {{s: {{config: {{a: {first}}}}}}}\n",
        "b": f"plugins: {{s: {{config: {{a: {second}}}}}}}\n",
    }
    assert finding(tmp_path, files).code == "E0205"


def test_relative_paths_in_two_directories_are_not_identical(tmp_path: Path) -> None:
    for text in ("plugins: {s: {use: ./x.py}}\n", "plugins: {s: {config: {t: '${file:p.md}'}}}\n"):
        assert finding(tmp_path, {ROOT: "include: d/b.yaml\n" + text, "d/b.yaml": text}).code == "E0205"


def test_a_field_comes_from_one_file_of_a_layer(tmp_path: Path) -> None:
    found = tree(
        tmp_path,
        {
            ROOT: "include: b.yaml\nsettings: {loop: {a: 1}}\ndaemon: {x: 1}\n",
            "b.yaml": "settings: {loop: {b: 2}, ui: {}}\n",
        },
    )
    assert data(found)["settings"] == {"loop": {"a": 1, "b": 2}, "ui": {}}
    issue = finding(tmp_path, {"b.yaml": "settings: {loop: {a: 2}}\n"})
    assert (issue.code, at(issue)) == ("E0206", "b.yaml:1:22")
    assert "settings.loop.a is set twice" in issue.message
    assert "dshd.yaml:2:22" in issue.message
    assert finding(tmp_path, {"b.yaml": "settings: {loop: {a: 1}}\n"}).code == "W0206"


# -- layers


def test_layers_merge_fields_the_later_over_the_earlier(tmp_path: Path) -> None:
    found = tree(
        tmp_path,
        {
            ROOT: "settings: {loop: {a: 1, b: [1, 2], c: {d: 1}}, gone: {x: 1}}\ndaemon: {level: info}\n"
            "plugins: {a: {}}\n",
            "b.yaml": "settings: {loop: {b: [3], c: {e: null, f: 2}}, gone: null, new: {y: null}}\nplugins: {b: {}}\n",
        },
        ROOT,
        "b.yaml",
    )
    assert data(found)["settings"] == {"loop": {"a": 1, "b": [3], "c": {"d": 1, "f": 2}}, "new": {}}
    assert found.settings is not None
    assert str(found.settings.at(("loop", "b"))) == f"{tmp_path}/b.yaml:1:19"
    assert str(found.settings.at(("loop", "a"))) == f"{tmp_path}/dshd.yaml:1:19"
    assert list(found.rows) == ["a", "b"]
    assert found.sources == (str(tmp_path / ROOT), str(tmp_path / "b.yaml"))


def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **bundles: str) -> None:
    write(tmp_path, {f"bundles/{name}.yaml": text for name, text in bundles.items()})
    paths = {name: str(tmp_path / f"bundles/{name}.yaml") for name in bundles}
    monkeypatch.setattr(includes, "available_bundles", lambda: paths)


def test_bundles_lie_below_the_first_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled(
        tmp_path,
        monkeypatch,
        one="plugins: {s: {}}\nsettings: {a: {x: 1, y: 1}}\n",
        two="settings: {a: {x: 2, y: 2}}\n",
    )
    found = tree(tmp_path, "bundles: [one, two]\nsettings: {a: {y: 3}}\noverlays: {s: {use: other}}\n")
    assert data(found)["settings"] == {"a": {"x": 2, "y": 3}}
    assert found.rows["s"].use == "other"
    assert [Path(source).name for source in found.sources] == [ROOT, "one.yaml", "two.yaml"]
    found = tree(tmp_path, {ROOT: "bundles: [one, two]\n", "b": "bundles: [one]\n"}, ROOT, "b")
    assert data(found)["settings"] == {"a": {"x": 1, "y": 1}}


def test_a_bundle_names_no_further_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled(tmp_path, monkeypatch, one="include: [x.yaml]\n")
    assert finding(tmp_path, "bundles: one\n").code == "E0211"


def test_the_packaged_bundles_are_valid(tmp_path: Path) -> None:
    assert {"core", "coding"} <= set(includes.available_bundles())
    found = tree(tmp_path, f"bundles: [{', '.join(sorted(includes.available_bundles()))}]\n")
    assert len(found.sources) == 1 + len(includes.available_bundles())


# -- overlays

BASE = """
plugins:
  shell: {use: shell_local, config: {timeout: 1, deep: {a: 1, b: 2}, list: [1]}, optional: true}
  plain:
  night:
    group:
      shell: {use: shell_local, config: {timeout: 2}}
      janitor: {config: {x: 1}}
    isolate: [shell]
agents:
  ops: {model: a, tools: {allow: [shell]}, optional: true}
"""


def overlaid(directory: Path, text: str) -> Tree:
    return tree(directory, {ROOT: BASE, "over.yaml": text}, ROOT, "over.yaml")


def test_an_overlay_merges_into_its_row(tmp_path: Path) -> None:
    found = overlaid(
        tmp_path,
        "overlays:\n  shell: {config: {deep: {b: null, c: 3}, list: [2, 3]}, optional: null}\n"
        "  night/shell: {config: {timeout: 5}}\n  agents/ops: {model: b, tools: {deny: [x]}, disabled: true}\n",
    )
    assert found.rows["shell"].config.plain() == {"timeout": 1, "deep": {"a": 1, "c": 3}, "list": [2, 3]}
    assert not found.rows["shell"].optional
    assert str(found.rows["shell"].config.at(("deep", "c"))) == f"{tmp_path}/over.yaml:2:36"
    assert str(found.rows["shell"].config.at(("timeout",))) == f"{tmp_path}/dshd.yaml:3:38"
    assert found.rows["night/shell"].config.plain() == {"timeout": 5}
    ops = found.rows["agents/ops"]
    assert ops.config.plain() == {"model": "b", "tools": {"allow": ["shell"], "deny": ["x"]}}
    assert ops.optional
    assert ops.disabled is not None


def test_a_changed_plugin_drops_the_old_config(tmp_path: Path) -> None:
    found = overlaid(
        tmp_path, "overlays: {shell: {use: ./other.py, config: {k: 1}}, night/shell: {use: shell_local}}\n"
    )
    assert found.rows["shell"].config.plain() == {"k": 1}
    assert found.rows["shell"].base == str(tmp_path)
    assert found.rows["shell"].use_mark.file == f"{tmp_path}/over.yaml"
    assert found.rows["shell"].optional
    assert found.rows["night/shell"].config.plain() == {"timeout": 2}
    assert overlaid(tmp_path, "overlays: {shell: {use: null}}\n").rows["shell"].config.plain() == {}
    assert overlaid(tmp_path, "overlays: {night/janitor: {use: janitor}}\n").rows["night/janitor"].config.plain() == {
        "x": 1
    }


def test_null_removes_a_row(tmp_path: Path) -> None:
    found = overlaid(tmp_path, "overlays: {shell: null, night/janitor: ~, agents/ops: null}\n")
    assert list(found.rows) == ["night/shell", "plain"]
    assert list(overlaid(tmp_path, "overlays: {night: null}\n").rows) == ["agents/ops", "plain", "shell"]


def test_an_overlay_that_is_commented_out_removes_nothing(tmp_path: Path) -> None:
    issue = finding(tmp_path, {ROOT: BASE + "overlays:\n  shell:\n    # use: x\n"})
    assert (issue.code, issue.line) == ("E0219", 13)


def test_an_overlay_of_a_group_reaches_its_rows(tmp_path: Path) -> None:
    found = overlaid(
        tmp_path,
        "overlays:\n  night:\n    inject: [m]\n    group:\n      shell: {use: other}\n      janitor: null\n"
        "      new: {config: {y: 1}}\n",
    )
    assert set(found.rows) == {"agents/ops", "night/new", "night/shell", "plain", "shell"}
    assert shown(found.rows["night/shell"])["config"] == {}
    assert shown(found.rows["night/new"]) | {"isolate": 0} == {
        "use": "new", "config": {"y": 1}, "inject": ["m"], "isolate": 0, "intercept": [], "optional": False,
        "disabled": None, "agent": False,
    }  # fmt: skip
    assert overlaid(tmp_path, "overlays: {plain: {group: {in: {}}}}\n").rows["plain/in"].use == "in"
    assert overlaid(tmp_path, "overlays: {night: {group: null}}\n").rows["night"].use == "night"


@pytest.mark.parametrize(
    ("overlay", "hint"),
    [
        ("shel: {config: {}}", "did you mean 'shell'?"),
        ("janitor: {config: {}}", "did you mean 'night/janitor'?"),
        ("night/shel: {}", "did you mean 'night/shell'?"),
        ("shell/x: {}", "if_exists: true"),
        ("agents: {ops: {}}", "agents/ID"),
        ("agents/op: null", "did you mean 'agents/ops'?"),
        ("templates/base: {}", "templates are no rows"),
        ("other: {if_exists: false}", "if_exists: true"),
    ],
)
def test_an_overlay_of_what_does_not_exist_is_an_error(tmp_path: Path, overlay: str, hint: str) -> None:
    issue = finding(tmp_path, {ROOT: BASE, "b": f"overlays:\n  {overlay}\n"}, ROOT, "b")
    assert (issue.code, at(issue)) == ("E0216", "b:2:3")
    assert hint in (issue.hint or "")


def test_an_overlay_may_say_that_its_row_need_not_exist(tmp_path: Path) -> None:
    text = (
        "overlays:\n  ghost: {if_exists: true, config: {a: 1}}\n  ghost/x: {if_exists: true}\n"
        "  shell: {if_exists: true, use: y}\n"
    )
    found = overlaid(tmp_path, text)
    assert "ghost" not in found.rows
    assert found.rows["shell"].use == "y"
    assert overlaid(tmp_path, "overlays: {ghost: {if_exists: true, group: {x: {}}}}\n").rows.keys() == found.rows.keys()
    assert finding(tmp_path, {ROOT: BASE + "overlays: {shell: {if_exists: maybe}}\n"}).code == "E0215"


def test_overlays_of_a_missing_file_s_rows_are_not_told_as_well(tmp_path: Path) -> None:
    files = {ROOT: "include: conf.d/*.yaml\noverlays: {a: {use: b}}\n", "conf.d/a.yaml": "plugins: {a: {}\n"}
    assert finding(tmp_path, files).code == "E0119"


def test_an_overlay_of_a_removed_row_says_who_removed_it(tmp_path: Path) -> None:
    issue = finding(tmp_path, {ROOT: BASE + "overlays: {night: null, night/shell: {use: x}}\n"})
    assert "removes 'night'" in (issue.hint or "")


def test_two_files_of_a_layer_may_not_overlay_one_field(tmp_path: Path) -> None:
    base = {ROOT: BASE + "include: over.d/*.yaml\n", "over.d/a.yaml": "overlays: {night/shell: {config: {a: 1}}}\n"}
    found = tree(tmp_path, base | {"over.d/b.yaml": "overlays: {night: {group: {shell: {config: {b: 2}}}}}\n"})
    assert found.rows["night/shell"].config.plain() == {"timeout": 2, "a": 1, "b": 2}
    issue = finding(tmp_path, base | {"over.d/b.yaml": "overlays: {night: {group: {shell: {config: {a: 2}}}}}\n"})
    assert (issue.code, issue.row) == ("E0206", "overlays.night/shell.config.a")
    assert finding(tmp_path, base | {"over.d/b.yaml": "overlays: {night/shell: null}\n"}).code == "E0206"


def test_layers_of_overlays_are_applied_in_order(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ROOT: BASE + "overlays: {shell: {config: {timeout: 7}}}\n",
            "b": "overlays: {shell: {config: {timeout: 8, z: 1}}}\n",
            "c": "overlays: {shell: {config: {timeout: 9}}}\nplugins: {late: {}}\n",
        },
    )
    assert composed(tmp_path, ROOT, "b", "c")[0].rows["shell"].config.plain()["timeout"] == 9
    assert composed(tmp_path, ROOT, "c", "b")[0].rows["shell"].config.plain()["timeout"] == 8


@pytest.mark.parametrize(
    ("overlay", "code"),
    [
        ("shell: {confg: {}}", "E0214"),
        ("shell: {confg: null}", "E0214"),
        ("shell: [x]", "E0202"),
        ("shell.config.timeout: 5", "E0212"),
        ("/shell: {}", "E0212"),
        ("night: {group: [x]}", "E0202"),
        ("night: {group: {shell: 1}}", "E0202"),
        ("night: {use: x}", "E0217"),
        ("agents/ops: {config: {model: x}}", "E0218"),
        ("agents/ops: {group: {x: {}}}", "E0218"),
    ],
)
def test_mistakes_in_overlays_are_told(tmp_path: Path, overlay: str, code: str) -> None:
    assert finding(tmp_path, {ROOT: BASE + f"overlays:\n  {overlay}\n"}).code == code


# -- properties


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ground")


ids = st.sampled_from(["a", "b", "c-1", "d_2", "e"])
values = st.recursive(
    st.sampled_from([1, 2, True, None, "x", "no", 1.5]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(ids, inner, max_size=3),
    max_leaves=5,
)
configs = st.dictionaries(ids, values, max_size=3)
leaf_rows = st.fixed_dictionaries(
    {}, optional={"use": ids, "config": configs, "optional": st.booleans(), "inject": st.lists(ids)}
)
rows = leaf_rows | st.fixed_dictionaries(
    {"group": st.dictionaries(ids, leaf_rows, max_size=2)}, optional={"isolate": st.lists(ids)}
)
trees = st.fixed_dictionaries(
    {
        "plugins": st.dictionaries(ids, rows, max_size=4),
        "agents": st.dictionaries(ids, configs, max_size=3),
        "templates": st.dictionaries(ids, configs, max_size=2),
        "settings": st.dictionaries(ids, st.dictionaries(ids, values, min_size=1, max_size=3), max_size=3),
        "overlays": st.dictionaries(
            ids, st.fixed_dictionaries({"if_exists": st.just(True)}, optional={"use": ids, "config": configs})
        ),
    }
)


def yaml_of(value: Any, rng: random.Random) -> str:
    """Flow style with keys in random order."""
    if isinstance(value, dict):
        members = list(value.items())
        rng.shuffle(members)
        return "{" + ", ".join(f"{key}: {yaml_of(member, rng)}" for key, member in members) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(yaml_of(member, rng) for member in value) + "]"
    if isinstance(value, str):
        return rng.choice([value, f"'{value}'", f'"{value}"'])
    return {True: "true", False: "false", None: "null"}.get(value, str(value)) if type(value) is not int else str(value)


def split_up(sections: dict[str, Any], rng: random.Random, parts: int) -> dict[str, str]:
    """The same sections scattered over a root and included files."""
    pieces: list[dict[str, dict[str, Any]]] = [{} for _ in range(parts)]
    for section, members in sections.items():
        for key, value in members.items():
            if section == "settings":
                for name, inner in value.items():
                    rng.choice(pieces).setdefault(section, {}).setdefault(key, {})[name] = inner
            else:
                rng.choice(pieces).setdefault(section, {})[key] = value
    texts = [yaml_of(piece, rng) if piece else "# nothing\n" for piece in pieces[1:]]
    files = {f"conf.d/{rng.randrange(1000):04}-{n}.yaml": text for n, text in enumerate(texts)}
    return files | {ROOT: "include: [conf.d/*.yaml]\n" + block_of(pieces[0], rng)}


def block_of(piece: dict[str, Any], rng: random.Random) -> str:
    lines = [f"{key}: {yaml_of(value, rng)}\n" for key, value in piece.items()]
    rng.shuffle(lines)
    return "".join(lines)


@settings(max_examples=80, deadline=None)
@given(trees, st.randoms(use_true_random=False), st.integers(2, 5))
def test_neither_the_split_into_files_nor_the_order_of_keys_counts(
    ground: Path, sections: dict[str, Any], rng: random.Random, parts: int
) -> None:
    for old in ground.glob("conf.d/*"):
        old.unlink()
    write(ground, {"whole.yaml": block_of(sections, rng)})
    whole, told = composed(ground, "whole.yaml")
    write(ground, split_up(sections, rng, parts))
    apart, told_apart = composed(ground)
    assert data(apart) == data(whole)
    assert sorted((i.code, i.message) for i in told) == sorted((i.code, i.message) for i in told_apart)
    assert {issue.code for issue in told} <= {"E0217"}


FULL = {
    ROOT: BASE + "bundles: [core]\ninclude: [conf.d/*.yaml, x.yaml]\ndaemon: {level: info}\ntemplates: {base: {r: 1}}\n"
    "overlays:\n  agents/ops: &o {model: z}\n  night: {group: {shell: {config: {t: 1}}}}\n",
    "conf.d/a.yaml": "settings: {loop: {a: [1, {b: 2}]}}\nplugins: {p: {use: ./p.py, intercept: {llm: {a: 1}}}}\n",
    "x.yaml": "include: conf.d/*.yaml\nagents:\n  two: {persona: '${file:p.md}'}\n",
}  # fmt: skip


def test_random_edits_only_ever_give_issues(tmp_path: Path) -> None:
    rng = random.Random(11)
    pieces = [
        "", "null", "[]", "{}", "true", "1", ": ", "- x\n", "\n", "use: x", "group: {a: {}}", "*", "{", "]", "agents",
        "../", "*/", "**", "x.yaml", "\\0", '"', "if_exists",
    ]  # fmt: skip
    valid = 0
    for _ in range(400):
        files = dict(FULL)
        for _ in range(rng.randrange(1, 4)):
            name = rng.choice(list(files))
            text = files[name]
            words = [match.span() for match in re.finditer(r"[\w./-]+|\S", text)]
            start, end = rng.choice(words) if words else (0, 0)
            files[name] = text[:start] + rng.choice(pieces) + text[end if rng.random() < 0.7 else start :]
        write(tmp_path, files)
        found, issues = composed(tmp_path)
        again, same_issues = composed(tmp_path)
        assert list(issues) == list(same_issues)
        assert repr(found) == repr(again)
        valid += not issues.errors
        for issue in issues:
            assert issue.file is None or issue.file in found.texts or issue.code in ("E0101", "E0207")
            render(issue, "line")
    assert valid > 20


# -- files


def test_a_stored_generation_is_read_by_the_same_code(tmp_path: Path) -> None:
    write(tmp_path, FULL)
    recorded = Recorded(Disk())
    found, issues = composed(tmp_path, files=recorded)
    assert not issues.errors
    stored = Stored.from_json(recorded.to_json())
    for name in FULL:
        (tmp_path / name).unlink()
    again, same_issues = composed(tmp_path, files=stored)
    assert (data(again), list(same_issues)) == (data(found), list(issues))
    assert again.sources == found.sources


def test_only_sources_are_stored(tmp_path: Path) -> None:
    write(tmp_path, {ROOT: "plugins: {a: {}}\n", "secret": "hunter2"})
    recorded = Recorded(Disk())
    composed(tmp_path, files=recorded)
    assert recorded.read(str(tmp_path / "secret")) == b"hunter2"
    assert "hunter2" not in str(recorded.to_json())
    stored = Stored.from_json(recorded.to_json())
    write(tmp_path, {"secret": "newer"})
    assert stored.read(str(tmp_path / "secret")) == b"newer"


def test_a_recording_is_one_snapshot_errors_included(tmp_path: Path) -> None:
    path, gone, pattern = str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "*")
    write(tmp_path, {"a": "1"})
    recorded = Recorded(Disk())
    assert recorded.read(path) == b"1"
    with pytest.raises(FileNotFoundError):
        recorded.read(gone)
    assert recorded.glob(pattern) == [path]
    before = recorded.fingerprint()
    assert recorded.again(Disk()).fingerprint() == before
    write(tmp_path, {"a": "2", "b": "3"})
    assert recorded.read(path) == b"1"
    assert recorded.glob(pattern) == [path]
    assert recorded.missing == (gone,)
    assert recorded.from_disk
    with pytest.raises(FileNotFoundError):
        recorded.read(gone)
    assert recorded.again(Disk()).fingerprint() != before
    stored = Stored.from_json(recorded.to_json())
    with pytest.raises(FileNotFoundError):
        stored.read(gone)
    assert stored.glob(pattern) == [path]
    assert recorded.again(stored).fingerprint() == before


def test_bytes_that_are_no_text_are_stored_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe\0")
    recorded = Recorded(Disk())
    recorded.read(str(tmp_path / "x"))
    assert Stored.from_json(recorded.to_json()).read(str(tmp_path / "x")) == b"\xff\xfe\0"


@pytest.mark.parametrize(
    "broken", [{}, {"files": []}, {"files": {"a": {}}, "globs": {}}, {"files": {"a": 1}, "globs": {}}]
)
def test_what_is_no_stored_generation_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no stored generation"):
        Stored.from_json(broken)


def test_the_disk_reads_regular_files_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (("pipe", "regular file"), (".", "directory"), ("a\0b", "null byte")):
        with pytest.raises(OSError, match=reason):
            Disk().read(str(tmp_path / name))
    with pytest.raises(OSError, match="regular file"):
        Disk().read("/dev/zero")


def test_a_file_that_grows_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_text("half")
    real = os.fstat
    grown: list[int] = []

    def fstat(handle: int) -> os.stat_result:
        found = real(handle)
        if not grown:
            grown.append(1)
            path.write_text("half and the rest")
        return found

    monkeypatch.setattr(os, "fstat", fstat)
    assert Disk().read(str(path)) == b"half and the rest"


def test_a_file_that_never_rests_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_text("x")
    real = os.fstat

    def fstat(handle: int) -> os.stat_result:
        found = real(handle)
        path.write_text(path.read_text() + "x")
        return found

    monkeypatch.setattr(os, "fstat", fstat)
    with pytest.raises(OSError, match="changes while it is being read"):
        Disk().read(str(path))

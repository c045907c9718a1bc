"""From real files to the desired state: what configs may say, who provides what, rules across rows, and digests."""

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dshd import Config
from dshd.kernel.secret import Secret, SecretUnavailableError
from dshd.loader.credentials import Credentials
from dshd.loader.desired import Memo, desire
from dshd.loader.files import Disk
from dshd.loader.issues import Issue, Issues
from dshd.loader.layers import compose
from dshd.loader.resolve import Resolver
from dshd.loader.spec import Desired, Spec
from dshd.loader.wording import masked

PROBE = """
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal
from pydantic import Field, field_validator, model_validator
from dshd import Config, Context, plugin
from dshd.kernel.secret import Secret

class Limits(Config):
    steps: int = 5
    time: timedelta = timedelta(seconds=1)

class Shell(Config):
    kind: Literal["shell"]
    timeout: float = 1

class Http(Config):
    kind: Literal["http"]
    url: str

class Probe(Config):
    api_key: Secret | None = None
    headers: dict[str, Secret] = Field(default_factory=dict)
    text: str = ""
    number: int = 0
    share: float = 0
    flag: bool = False
    words: list[str] = Field(default_factory=list)
    table: dict[str, int] = Field(default_factory=dict)
    mode: Literal["fast", "slow"] = "fast"
    limits: Limits = Limits()
    where: Path | None = None
    any: Any = None
    either: int | bool | None = None
    model: Limits | str | None = None
    small: Annotated[int, Field(le=9)] = 0
    short: str = Field(default="", max_length=8)
    tool: Annotated[Shell | Http, Field(discriminator="kind")] | None = None
    even: int = 0
    auth: str = ""

    @field_validator("even")
    @classmethod
    def is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError(f"{value} is odd")
        return value

    @model_validator(mode="after")
    def fits(self) -> "Probe":
        if self.text == "boom":
            raise ValueError("text and number do not fit")
        return self

@plugin("probe", config=Probe)
async def probe(ctx: Context, config: Probe) -> None: ...
"""


class Site:
    """A directory with a configuration, and one evaluation of it after another."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environ: dict[str, str] = {}
        self.resolver = Resolver()
        self.memo: Memo | None = None
        self.running: Mapping[str, Spec] = {}
        (home / "probe.py").write_text(PROBE)

    def desired(
        self,
        text: str,
        *,
        provided: frozenset[str] = frozenset(),
        daemon_model: type[Config] | None = None,
        credentials: bool = True,
        key: bytes = b"key",
    ) -> Desired:
        (self.home / "dshd.yaml").write_text(textwrap.dedent(text))
        issues, files = Issues(), Disk()
        tree = compose(files, [str(self.home / "dshd.yaml")], issues)
        return desire(
            tree,
            files=files,
            environ=self.environ,
            credentials=Credentials(self.environ, self.home / "state") if credentials else None,
            key=key,
            provided=provided,
            daemon_model=daemon_model,
            plugins=self.resolver,
            issues=issues,
            memo=self.memo,
            running=self.running,
        )

    def probe(self, config: str, **more: Any) -> Desired:
        """The state with one row that has this config, written in one line after `config: `."""
        return self.desired(f"plugins:\n  p:\n    use: ./probe.py\n    config: {config}\n", **more)

    def config(self, config: str) -> Any:
        desired = self.probe(config)
        assert list(desired.issues) == []
        return desired.specs["p"].config

    def issue(self, config: str) -> Issue:
        (issue,) = self.probe(config).issues
        return issue

    def plugin(self, name: str, *, needs: str = "", offers: str = "", tail: str = "") -> None:
        """A plugin file that needs and provides services."""
        keys = {"inject": needs.split(), "provides": offers.split()}
        lists = ", ".join(f"{k}=[{', '.join(f'ServiceKey({n!r})' for n in v)}]" for k, v in keys.items())
        (self.home / f"{name}.py").write_text(
            f"from dshd import Config, Context, ServiceKey, plugin\n"
            f"@plugin({name!r}, {lists})\nasync def it(ctx: Context, config: Config) -> None: ...\n{tail}"
        )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def told(desired: Desired) -> list[str]:
    return [f"{issue.code} {issue.row}: {issue.message}" for issue in desired.issues]


# -- what is written is what is meant ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        ("{text: no}", "text", "no"),
        ("{text: off}", "text", "off"),
        ("{words: [de, no, se]}", "words", ["de", "no", "se"]),
        ("{text: 0123}", "text", "0123"),
        ("{words: [08, 09, 010]}", "words", ["08", "09", "010"]),
        ("{text: 12:30}", "text", "12:30"),
        ("{flag: true}", "flag", True),
        ("{number: 5}", "number", 5),
        ('{number: "5"}', "number", 5),
        ('{share: "1.5"}', "share", 1.5),
        ("{share: 1}", "share", 1.0),
        ("{any: no}", "any", "no"),
        ("{any: 5}", "any", 5),
        ("{either: true}", "either", True),
        ("{either: 1}", "either", 1),
    ],
)
def test_a_value_arrives_as_it_is_meant(site: Site, config: str, field: str, value: object) -> None:
    arrived = getattr(site.config(config), field)
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(
    ("config", "message", "hint"),
    [
        ("{text: 5}", "config.text: expected text, found the number 5", "quote it"),
        ("{text: true}", "config.text: expected text, found true", "quote it"),
        ("{text: 1.10}", "config.text: expected text, found the number 1.1", "quote it"),
        ("{words: [a, 5]}", "config.words[1]: expected text, found the number 5", "quote it"),
        ("{words: [true]}", "config.words[0]: expected text, found true", "quote it"),
        ("{flag: no}", "config.flag: expected true or false, found text 'no'", "write false"),
        ("{flag: 'true'}", "config.flag: expected true or false, found text 'true'", "write true"),
        ("{flag: 1}", "config.flag: expected true or false, found the number 1", ""),
        ("{number: 010}", "config.number: expected a whole number, found text '010'", "write 10"),
        ("{number: 1.5}", "config.number: expected a whole number, found the number 1.5", ""),
        ("{number: 1e3}", "config.number: expected a whole number, found the number 1000.0", "write 1000"),
        ("{words: [null]}", "config.words[0]: expected text, found nothing", ""),
        ("{tool: {kind: http, url: null}}", "config.tool: missing field 'url'", ""),
        ("{number: true}", "config.number: expected a whole number, found true", ""),
        ("{number: [1]}", "config.number: expected a whole number, found a list", ""),
        ("{share: fast}", "config.share: expected a number, found text 'fast'", ""),
        ("{words: a}", "config.words: expected a list, found text 'a'", "[a]"),
        ("{words: {a: 1}}", "config.words: expected a list, found a mapping", ""),
        ("{limits: 5}", "config.limits: expected a mapping, found the number 5", ""),
        ("{table: [a]}", "config.table: expected a mapping, found a list", ""),
        ("{mode: fats}", "config.mode: expected 'fast' or 'slow', found text 'fats'", "did you mean 'fast'?"),
        ("{either: x}", "config.either: expected a whole number or true or false, found text 'x'", ""),
        ("{model: 5}", "config.model: expected a mapping or text, found the number 5", "quote it"),
        ("{model: {stepz: 5}}", "unknown field 'config.model.stepz'", "did you mean 'steps'?"),
        ("{small: 12}", "config.small: must be less than or equal to 9", ""),
        ("{short: much too long}", "config.short: must have at most 8 characters", ""),
        ("{even: 3}", "config.even: 3 is odd", ""),
        ("{text: boom}", "config: text and number do not fit", ""),
        ("{tool: {kind: shel}}", "config.tool.kind: expected one of 'shell', 'http', found text 'shel'", "'shell'"),
        ("{tool: {timeout: 1}}", "config.tool: missing field 'kind'", ""),
        ("{tool: {kind: http}}", "config.tool: missing field 'url'", ""),
        ("{tool: {kind: shell, timout: 1}}", "unknown field 'config.tool.timout'", "'timeout'"),
        ("{limits: {stepz: 1}}", "unknown field 'config.limits.stepz'", "did you mean 'steps'?"),
        ("{zebra: 1}", "unknown field 'config.zebra'", "known fields: api_key"),
        ("{limits: {time: soon}}", "config.limits.time: expected a duration such as 30s, 5m or 2h", ""),
    ],
)
def test_what_is_wrong_is_said_in_the_users_words(site: Site, config: str, message: str, hint: str) -> None:
    issue = site.issue(config)
    assert issue.message.startswith(message)
    assert hint in (issue.hint or "")
    assert (issue.row, issue.line) == ("p", 4)
    for word in ("pydantic", "Probe", "Limits", "Input", "type="):
        assert word not in f"{issue.message} {issue.hint}"


def test_errors_stand_at_the_key_or_the_value_that_is_wrong(site: Site) -> None:
    desired = site.desired(
        """\
        plugins:
          p:
            use: ./probe.py
            config:
              limits:
                steps: many
                stepz: 1
              words:
                - a
                - [b]
        """
    )
    assert [(issue.code, issue.line, issue.col) for issue in desired.issues] == [
        ("E0403", 6, 16), ("E0401", 7, 9), ("E0403", 10, 11),
    ]  # fmt: skip
    assert {issue.file for issue in desired.issues} == {str(site.home / "dshd.yaml")}


def test_null_takes_a_field_out(site: Site) -> None:
    config = site.config("{text: null, words: null, where: null, limits: {steps: null}}")
    assert (config.text, config.limits.steps, config.words, config.where) == ("", 5, [], None)
    assert site.config("{limits: null}").limits.steps == 5
    assert site.config("{any: {a: null}}").any == {"a": None}


@pytest.mark.parametrize(
    ("written", "seconds"), [("60", 60), ("60s", 60), ("250ms", 0.25), ("5m", 300), ("2h", 7200), ("PT1M", 60)]
)
def test_durations_are_written_as_everywhere(site: Site, written: str, seconds: float) -> None:
    assert site.config(f"{{limits: {{time: {written}}}}}").limits.time.total_seconds() == seconds


def test_relative_paths_start_at_the_file_that_names_them(site: Site) -> None:
    site.environ.update(HOME="/home/ada", DIR="from/env")
    assert site.config("{where: data/x}").where == site.home / "data" / "x"
    assert site.config("{where: /srv/x}").where == Path("/srv/x")
    assert site.config("{where: ~/x}").where == Path("/home/ada/x")
    assert site.config('{where: "${env:DIR}"}').where == site.home / "from" / "env"


# -- references --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("text", "5", "5"),
        ("text", "true", "true"),
        ("number", "5", 5),
        ("number", " 5 ", 5),
        ("share", "1.5", 1.5),
        ("flag", "yes", True),
        ("flag", "0", False),
        ("words", '["a","b"]', ["a", "b"]),
        ("words", "[]", []),
        ("table", '{"a": 1}', {"a": 1}),
        ("either", "7", 7),
        ("either", "true", True),
        ("mode", "slow", "slow"),
        ("any", "5", "5"),
    ],
)
def test_a_reference_is_parsed_by_the_type_of_its_field(site: Site, field: str, text: str, value: object) -> None:
    site.environ["VALUE"] = text
    arrived = getattr(site.config(f'{{{field}: "${{env:VALUE}}"}}'), field)
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(
    ("field", "text", "words", "hint"),
    [
        ("words", "marker,b", "expected a list, but environment variable 'VALUE' gives something else", '["a", "b"]'),
        ("words", "", "expected a list, but environment variable 'VALUE' is empty", '["a", "b"]'),
        ("table", "marker=1", "expected a mapping, but environment variable 'VALUE'", '{"a": 1}'),
        ("number", "marker", "expected a whole number, but environment variable 'VALUE'", ""),
        ("number", "", "expected a whole number, but environment variable 'VALUE' is empty", ""),
        ("flag", "marker", "expected true or false, but environment variable 'VALUE'", ""),
        ("mode", "marker", "expected 'fast' or 'slow', but environment variable 'VALUE'", ""),
    ],
)
def test_a_reference_that_does_not_fit_is_named_and_its_text_is_not_shown(
    site: Site, field: str, text: str, words: str, hint: str
) -> None:
    site.environ["VALUE"] = text
    issue = site.issue(f'{{{field}: "${{env:VALUE}}"}}')
    assert issue.code == "E0405"
    assert issue.message.startswith(f"config.{field}: {words}")
    assert hint in (issue.hint or "")
    assert "marker" not in f"{issue.message}{issue.hint}"


def test_a_list_from_json_is_strict_inside(site: Site) -> None:
    site.environ["VALUE"] = '["a", 5]'
    assert "expected text" in site.issue('{words: "${env:VALUE}"}').message


def test_an_unset_variable_is_reported_once_and_beside_all_else(site: Site) -> None:
    desired = site.probe('{number: "${env:GHOST}", flag: no, zebra: 1}')
    assert [issue.code for issue in desired.issues] == ["E0302", "E0403", "E0401"]
    assert desired.environment == ("GHOST",)
    assert "p" not in desired.specs


def test_disabled_takes_a_reference(site: Site) -> None:
    text = "plugins:\n  p: {use: ./probe.py, disabled: '${env:OFF:-false}'}\n"
    assert list(site.desired(text).specs) == ["p"]
    site.environ["OFF"] = "yes"
    assert list(site.desired(text).specs) == []
    site.environ["OFF"] = "marker"
    (issue,) = site.desired(text).issues
    assert issue.message == "disabled: expected true or false, but environment variable 'OFF' gives something else"


def test_a_disabled_row_need_not_be_valid(site: Site) -> None:
    desired = site.desired("plugins:\n  p: {use: ghost, config: {x: '${env:GHOST}'}, disabled: true}\n")
    assert (told(desired), desired.ok) == ([], True)


def test_data_sections_are_expanded_and_take_no_credentials(site: Site) -> None:
    site.environ["N"] = "4"
    desired = site.desired(
        """\
        templates: {base: {steps: "${env:N}", key: "${credential:K}"}}
        settings: {loop: {max: "${env:N}", key: "${credential:K}"}}
        plugins: {p: {use: ./probe.py, intercept: {llm: {key: "${credential:K}", max: "${env:N}"}}}}
        """
    )
    assert [issue.code for issue in desired.issues] == ["E0305"] * 3
    assert desired.templates["base"]["steps"] == desired.settings["loop"]["max"] == "4"


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_a_credential_reaches_its_field_as_a_handle(site: Site) -> None:
    site.environ.update(KEY="old", REALM="r")
    config = site.config('{api_key: "${credential:KEY}", headers: {a: "Bearer ${credential:KEY} ${env:REALM}", b: x}}')
    assert config.api_key.reveal() == "old"
    site.environ["KEY"] = "new"
    assert config.headers["a"].reveal() == "Bearer new r"
    assert config.headers["b"] == Secret("x")
    del site.environ["KEY"]
    with pytest.raises(SecretUnavailableError):
        config.api_key.reveal()


@pytest.mark.parametrize("field", ["text", "number", "any", "words", "mode", "where", "short", "flag"])
def test_a_credential_fits_no_other_field(site: Site, field: str) -> None:
    site.environ["KEY"] = "x"
    (issue,) = site.probe(f'{{{field}: "${{credential:KEY}}"}}').issues
    assert issue.code == "E0305"
    assert issue.message == f"config.{field}: a credential can stand in a secret field only"


def test_a_credential_in_a_wrong_field_is_reported_beside_other_errors(site: Site) -> None:
    site.environ["KEY"] = "x"
    desired = site.probe('{text: "${credential:KEY}", zebra: 1}')
    assert sorted(issue.code for issue in desired.issues) == ["E0305", "E0401"]


def test_a_missing_credential_is_an_error_that_names_every_place(site: Site) -> None:
    desired = site.probe('{api_key: "${credential:KEY}"}')
    (issue,) = desired.issues
    assert issue.code == "E0306"
    for place in ("config.api_key", "$CREDENTIALS_DIRECTORY", "environment variable KEY", "credentials.yaml"):
        assert place in issue.message
    assert desired.credentials == ("KEY",)
    assert str(site.home / "state" / "credentials.yaml") in desired.referenced
    assert site.probe('{api_key: "${credential:KEY}"}', credentials=False).ok


def test_a_missing_credential_of_an_optional_row_is_a_warning(site: Site) -> None:
    row = "{use: ./probe.py, optional: true, config: {api_key: '${credential:KEY}'}}"
    desired = site.desired(f"plugins: {{p: {row}}}")
    assert [issue.code for issue in desired.issues] == ["W0306"]
    assert list(desired.specs) == ["p"]


MARKER = "s3cr3t-marker"


@pytest.mark.parametrize(
    "config",
    [
        f"{{api_key: {MARKER}, zebra: 1}}",
        f"{{api_key: [{MARKER}]}}",
        f"{{headers: {{authorization: {MARKER}}}, number: x}}",
        f"{{auth: [{MARKER}]}}",
        f"{{flag: {MARKER}-{'x' * 40}}}",
        f"{{flag: 'https://u:{MARKER}@host/'}}",
        f"{{limits: {{token: {MARKER}}}}}",
        '{flag: "${env:MARKER}", even: "${env:MARKER}"}',
        '{mode: "${file:marker}"}',
        '{short: "${env:MARKER}"}',
        '{text: boom, auth: "${env:MARKER}"}',
    ],
)
def test_no_message_shows_a_secret(site: Site, config: str) -> None:
    site.environ["MARKER"] = MARKER
    (site.home / "marker").write_text(MARKER)
    desired = site.probe(config)
    assert not desired.ok
    assert MARKER not in json.dumps([issue.as_json() for issue in desired.issues])


def test_no_digest_or_canonical_form_shows_a_secret(site: Site) -> None:
    site.environ.update(MARKER=MARKER, KEY=MARKER, PIN="471100815")
    (site.home / "marker").write_text(MARKER)
    desired = site.desired(
        """\
        settings: {loop: {key: "${env:MARKER}"}}
        templates: {base: {key: "${file:marker}"}}
        plugins:
          p:
            use: ./probe.py
            intercept: {llm: {key: "${env:MARKER}"}}
            config:
              api_key: s3cr3t-marker
              headers: {a: "Bearer ${env:MARKER}", b: "${credential:KEY}", c: "s3cr3t-marker ${credential:KEY}"}
              text: x ${env:MARKER} y
              words: ["${file:marker}"]
              any: {deep: ["${env:MARKER}"]}
              number: ${env:PIN}
              where: ${env:MARKER}
        """
    )
    assert desired.ok
    seen = json.dumps(desired.specs["p"].canonical) + repr(desired.specs["p"]) + desired.digest
    assert "471100815" not in json.dumps(desired.specs["p"].canonical)
    assert MARKER not in json.dumps(desired.specs["p"].canonical)
    assert "credential:KEY" in seen


def test_a_rotated_credential_changes_no_digest_and_a_changed_variable_does(site: Site) -> None:
    site.environ.update(KEY="a", NAME="a")
    text = '{api_key: "${credential:KEY}", text: "${env:NAME}"}'
    first = site.probe(text).digest
    site.environ["KEY"] = "b"
    assert site.probe(text).digest == first
    site.environ["NAME"] = "b"
    assert site.probe(text).digest != first
    site.environ["NAME"] = "a"
    assert site.probe(text).digest == first
    assert site.probe(text, key=b"other").digest != first


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("  api_key: sk-abc", "  api_key: ******"),
        ("{api_key: sk-abc, zz: 1}", "{api_key: ******, zz: 1}"),
        ("'x-api-key': \"abc def\"", "'x-api-key': *********"),
        ("api_key: ${credential:X}", "api_key: ${credential:X}"),
        ("base_url: https://u:p@host/x", "base_url: https://***@host/x"),
        ("headers: {Authorization: Bearer abc, x: y}", "headers: {Authorization: **********, x: y}"),
        ("keys: {a: b}", "keys: {a: b}"),
        ("max_tokens: 5", "max_tokens: 5"),
    ],
)
def test_a_line_that_is_shown_has_its_secrets_covered(line: str, shown: str) -> None:
    assert masked(line) == shown
    assert len(masked(line)) == len(line)


# -- digests -----------------------------------------------------------------------------------------------------------

SAME = [
    "{text: a, number: 5, limits: {steps: 5, time: 1s}, words: [x]}",
    "{words: ['x'], limits: {time: 1, steps: 5}, number: 5, text: \"a\"}  # a comment",
    "{text: a, number: '5', words: [x], share: 0, flag: false}",
    "{text: a, number: 5, words: [x], share: 0.0, where: null}",
    "\n      text: a\n      number: 5\n      words: &w\n      - x",
]


def test_comments_order_quoting_defaults_and_spelling_never_count(site: Site) -> None:
    assert len({site.probe(config).digest for config in SAME}) == 1
    assert all(site.probe(config).ok for config in SAME)


def test_the_split_into_files_never_counts(site: Site) -> None:
    whole = site.desired("plugins:\n  a: {use: ./probe.py, config: {number: 1}}\n  b: {use: ./probe.py}\n")
    (site.home / "b.yaml").write_text("plugins: {b: {use: ./probe.py}}\n")
    split = site.desired("include: [b.yaml]\nplugins: {a: {use: ./probe.py, config: {number: 1}}}\n")
    assert whole.ok
    assert split.digest == whole.digest
    assert {path: spec.digest for path, spec in split.specs.items()} == {
        path: spec.digest for path, spec in whole.specs.items()
    }


@pytest.mark.parametrize(
    "row",
    [
        "{use: ./probe.py, config: {number: 1}}",
        "{use: ./probe.py, optional: true}",
        "{use: ./probe.py, inject: [clock]}",
        "{use: ./probe.py, isolate: [db]}",
        "{use: ./probe.py, isolate: {db: shared}}",
        "{use: ./probe.py, intercept: {db: {x: 1}}}",
        "{use: hello}",
        "{group: {p: {use: ./probe.py}}}",
    ],
)
def test_everything_else_counts(site: Site, row: str) -> None:
    provided = frozenset({"clock"})
    plain = site.desired("plugins: {p: {use: ./probe.py}}", provided=provided)
    other = site.desired(f"plugins: {{p: {row}}}", provided=provided)
    assert other.ok
    assert other.digest != plain.digest


def test_settings_and_templates_count_in_the_whole_and_daemon_does_not(site: Site) -> None:
    base = site.desired("plugins: {p: {use: ./probe.py}}\n").digest
    assert site.desired("plugins: {p: {use: ./probe.py}}\nsettings: {a: {b: 1}}\n").digest != base
    assert site.desired("plugins: {p: {use: ./probe.py}}\ntemplates: {a: {b: 1}}\n").digest != base
    assert site.desired("plugins: {p: {use: ./probe.py}}\ndaemon: {log_level: debug}\n").digest == base


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "no", "010", "${x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(one=VALUES, two=VALUES)
def test_digests_are_equal_exactly_for_equal_data(site: Site, one: object, two: object) -> None:
    def written(value: object) -> str:
        return json.dumps(value).replace("${", "$${")

    first, second = (site.probe(f'{{any: {{"v": {written(value)}}}}}') for value in (one, two))
    assert first.ok
    assert (first.digest == second.digest) == (json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(st.sampled_from([*SAME, "{number: x}", "{text: b}", '{text: "${env:NAME}"}', "{}"]), max_size=6))
def test_remembering_changes_no_answer(site: Site, edits: list[str]) -> None:
    site.environ["NAME"] = "ada"
    site.memo = Memo()
    for edit in edits:
        site.memo, kept = site.memo, site.memo
        again = site.probe(edit)
        site.memo = None
        fresh = site.probe(edit)
        site.memo = kept
        assert (again.digest, list(again.issues)) == (fresh.digest, list(fresh.issues))
        assert {path: spec.row.mark for path, spec in again.specs.items()} == {
            path: spec.row.mark for path, spec in fresh.specs.items()
        }


def test_an_unchanged_row_keeps_its_spec_and_learns_where_it_stands_now(site: Site) -> None:
    site.memo = Memo()
    first = site.desired("plugins:\n  p: {use: ./probe.py}\n").specs["p"]
    second = site.desired("# new\n\nplugins:\n  p: {use: ./probe.py}\n").specs["p"]
    assert second.config is first.config
    assert (first.row.mark.line, second.row.mark.line) == (2, 4)


# -- the graph of services ---------------------------------------------------------------------------------------------


def test_a_missing_provider_is_an_error_that_names_key_and_realm(site: Site) -> None:
    site.plugin("needy", needs="db")
    desired = site.desired("plugins:\n  x: {use: ./needy.py}\n  y: {use: ./needy.py, isolate: [db]}\n")
    assert told(desired) == [
        "E0501 x: row 'x' waits for service 'db', which nobody that is mounted could provide",
        "E0501 y: row 'y' waits for service 'db' in realm y#db, which nobody that is mounted could provide",
    ]
    assert list(desired.specs) == ["x", "y"]


def test_a_missing_provider_of_an_optional_row_is_a_warning(site: Site) -> None:
    site.plugin("needy", needs="ghost")
    desired = site.desired("plugins: {x: {use: ./needy.py, optional: true}, y: {use: hello}}")
    assert told(desired) == ["W0501 x: row 'x' waits for service 'ghost', which nobody that is mounted could provide"]
    assert desired.ok


def test_needs_are_met_by_rows_and_by_the_process(site: Site) -> None:
    site.plugin("needy", needs="db clock")
    site.plugin("db", offers="db")
    text = "plugins: {x: {use: ./needy.py}, d: {use: ./db.py}}"
    assert site.desired(text, provided=frozenset({"clock"})).ok
    assert [issue.message.split("'")[3] for issue in site.desired(text).issues] == ["clock"]


def test_who_could_provide_it_elsewhere_is_said(site: Site) -> None:
    site.plugin("needy", needs="db")
    site.plugin("db", offers="db")
    realm = "plugins: {x: {use: ./needy.py}, d: {use: ./db.py, isolate: {db: batch}}}"
    (issue,) = site.desired(realm).issues
    assert issue.hint == "row 'd' provides it in realm batch"
    (issue,) = site.desired("plugins: {x: {use: ./needy.py}, d: {use: ./db.py, disabled: true}}").issues
    assert issue.message.endswith("; row 'd', which could, is disabled")
    (issue,) = site.desired("plugins: {x: {use: hello, inject: [clokc]}}", provided=frozenset({"clock"})).issues
    assert issue.hint == "did you mean 'clock'?"
    isolated = "plugins: {x: {use: hello, inject: [clock], isolate: [clock]}}"
    (issue,) = site.desired(isolated, provided=frozenset({"clock"})).issues
    assert issue.hint == "dshd itself provides it, where it is not isolated"
    (issue,) = site.desired("plugins: {x: {use: hello, inject: [hello]}}").issues
    assert issue.hint == "installed plugins that may provide it: hello"


def test_removing_a_provider_that_is_needed_names_both(site: Site) -> None:
    site.plugin("needy", needs="db")
    site.plugin("db", offers="db")
    site.running = site.desired("plugins: {x: {use: ./needy.py}, d: {use: ./db.py}}").specs
    (issue,) = site.desired("plugins: {x: {use: ./needy.py}}").issues
    assert "row 'x'" in issue.message
    assert issue.message.endswith("; row 'd', which provides it now, would be removed")


def test_realms_meet_as_in_the_kernel(site: Site) -> None:
    site.plugin("needy", needs="db")
    site.plugin("db", offers="db")
    desired = site.desired(
        """\
        plugins:
          d: {use: ./db.py}
          x: {use: ./needy.py}
          nightly:
            isolate: [db]
            group:
              d: {use: ./db.py}
              x: {use: ./needy.py}
              inner: {isolate: {db: named}, group: {x: {use: ./needy.py}}}
          other: {use: ./db.py, isolate: {db: named}}
        """
    )
    assert told(desired) == []


def test_two_providers_in_one_realm_name_both(site: Site) -> None:
    site.plugin("db", offers="db")
    desired = site.desired("plugins:\n  a: {use: ./db.py}\n  b: {use: ./db.py}\n  c: {use: ./db.py, isolate: [db]}\n")
    (issue,) = desired.issues
    place = f"{site.home / 'dshd.yaml'}:2:3"
    assert (issue.code, issue.row) == ("E0502", "b")
    assert issue.message == f"service 'db' would be provided twice: by row 'b' and by row 'a' at {place}"
    (issue,) = site.desired("plugins: {a: {use: ./db.py}}", provided=frozenset({"db"})).issues
    assert issue.message == "service 'db' would be provided twice: by row 'a' and by dshd itself"


def cycle(site: Site, *, optional: bool = False) -> Desired:
    site.plugin("a", needs="b", offers="a")
    site.plugin("b", needs="a", offers="b")
    site.plugin("user", needs="a")
    more = ", optional: true" if optional else ""
    return site.desired(
        f"plugins: {{A: {{}}, x: {{use: ./a.py{more}}}, y: {{use: ./b.py{more}}}}}".replace("A: {}, ", "")
    )


def test_a_cycle_is_printed_as_a_path(site: Site) -> None:
    (issue,) = cycle(site).issues
    assert issue.code == "E0503"
    assert issue.message == "these rows wait for each other, in a cycle: x→b→y→a→x"


def test_a_cycle_of_optional_rows_is_a_warning(site: Site) -> None:
    desired = cycle(site, optional=True)
    assert [issue.code for issue in desired.issues] == ["W0503"]
    assert desired.ok


def test_a_row_that_needs_itself_is_a_cycle(site: Site) -> None:
    site.plugin("snake", needs="tail", offers="tail")
    (issue,) = site.desired("plugins: {s: {use: ./snake.py}}").issues
    assert issue.message.endswith("in a cycle: s→tail→s")


def test_every_cycle_is_found_and_who_waits_for_one_is_not_blamed(site: Site) -> None:
    cycle(site)
    site.plugin("c", needs="c", offers="c")
    rows = "x: {use: ./a.py}, y: {use: ./b.py}, c: {use: ./c.py}, u: {use: ./user.py}"
    assert [issue.row for issue in site.desired(f"plugins: {{{rows}}}").issues] == ["x", "c"]


def test_a_row_that_waits_for_an_optional_one_that_cannot_open_is_an_error(site: Site) -> None:
    site.plugin("db", needs="ghost", offers="db")
    site.plugin("needy", needs="db")
    desired = site.desired("plugins: {d: {use: ./db.py, optional: true}, x: {use: ./needy.py}}")
    assert [issue.code for issue in desired.issues] == ["W0501", "E0504"]
    assert "'x' waits for service 'db' of row 'd', which is optional and cannot open" in told(desired)[1]


def test_injected_services_are_waited_for_and_stand_in_the_plugin(site: Site) -> None:
    site.plugin("db", offers="db")
    desired = site.desired("plugins: {d: {use: ./db.py}, h: {use: hello, inject: [db]}, i: {use: hello}}")
    assert [key.name for key in desired.specs["h"].plugin.inject] == ["db"]
    assert desired.specs["i"].plugin.inject == ()
    (issue,) = site.desired("plugins:\n  h:\n    use: hello\n    inject:\n      - gone\n").issues
    assert (issue.line, issue.col) == (5, 9)


def test_a_mistyped_service_in_isolate_or_intercept_is_a_warning(site: Site) -> None:
    site.plugin("db", offers="database")
    desired = site.desired("plugins: {d: {use: ./db.py, isolate: [databse], intercept: {databas: {x: 1}, llm: {}}}}")
    assert [(issue.code, issue.hint) for issue in desired.issues] == [("W0505", "did you mean 'database'?")] * 2


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    needs=st.dictionaries(st.integers(0, 5), st.sets(st.integers(0, 6), max_size=3), min_size=1),
    optional=st.sets(st.integers(0, 5)),
)
def test_a_tree_is_accepted_exactly_if_every_needed_row_can_open(
    site: Site, needs: dict[int, set[int]], optional: set[int]
) -> None:
    """Row n provides sn; it opens when all it needs is open. That is what the kernel does."""
    for row, keys in needs.items():
        name = f"p{row}_{'_'.join(map(str, sorted(keys)))}"
        if not (site.home / f"{name}.py").exists():
            site.plugin(name, needs=" ".join(f"s{key}" for key in sorted(keys)), offers=f"s{row}")
    opened: set[int] = set()
    while more := {row for row, keys in needs.items() if row not in opened and keys <= opened}:
        opened |= more
    lines = [
        f"  r{row}: {{use: ./p{row}_{'_'.join(map(str, sorted(keys)))}.py, optional: {str(row in optional).lower()}}}\n"
        for row, keys in needs.items()
    ]
    desired = site.desired(f"plugins:\n{''.join(lines)}")
    assert desired.ok == all(row in opened or row in optional for row in needs), told(desired)


# -- plugins that are not there ----------------------------------------------------------------------------------------


def test_everything_is_reported_at_once(site: Site) -> None:
    site.plugin("needy", needs="db")
    (site.home / "broken.py").write_text("import ghost_of_a_module\n")
    desired = site.desired(
        """\
        plugins:
          a: {use: helo}
          b: {use: ./broken.py}
          c: {use: ./probe.py, config: {number: x, zebra: 1}}
          d: {use: ./needy.py}
          e: {use: ./probe.py, config: {text: "${env:GHOST}"}}
          f: {use: hello, config: {who: there}}
        """
    )
    assert [(issue.code, issue.row) for issue in desired.issues] == [
        ("E0311", "a"), ("E0313", "b"), ("E0403", "c"), ("E0401", "c"), ("E0501", "d"), ("E0302", "e"),
    ]  # fmt: skip
    assert list(desired.specs) == ["d", "f"]
    hint = next(issue.hint for issue in desired.issues if issue.row == "d")
    assert hint == "it may come from row 'a' or 'b', whose plugin could not be loaded"


def test_the_section_of_the_process_is_validated_by_its_model(site: Site) -> None:
    class Daemon(Config):
        log_level: str = "info"
        rescan: float = 10

    site.environ["LEVEL"] = "debug"
    desired = site.desired("daemon: {log_level: '${env:LEVEL}'}", daemon_model=Daemon)
    assert desired.daemon == {"log_level": "debug"}
    (issue,) = site.desired("daemon: {log_levle: info}", daemon_model=Daemon).issues
    assert (issue.row, issue.message) == ("daemon", "unknown field 'daemon.log_levle'")
    assert site.desired("daemon: {x: 1}").daemon == {"x": 1}
    assert site.desired("").daemon == {}


# -- rules across rows -------------------------------------------------------------------------------------------------

RULE = """
from dataclasses import dataclass
from pydantic import Field
from dshd import Config, Context
from dshd.kernel.plugin import Plugin

class Agent(Config):
    route: str
    fallbacks: list[str] = Field(default_factory=list)

async def body(ctx: Context, config: Agent) -> None: ...

def rule(view):
    if view.row.config.route == "crash":
        raise RuntimeError(view.row.config.route)
    named = {"route": view.row.config.route}
    named |= {("fallbacks", index): name for index, name in enumerate(view.row.config.fallbacks)}
    for place, name in named.items():
        if name not in view.rows:
            view.error(place, f"there is no route {name!r}", hint=f"routes: {', '.join(view.rows)}")
        elif view.rows[name].plugin != "hello":
            view.warn(place, f"{name!r} is a {view.rows[name].plugin}")

@dataclass(frozen=True)
class Ruled(Plugin[Agent]):
    validate: object = None

agent = Ruled("agent", body, Agent, validate=rule)
"""


def test_a_rule_sees_all_rows_and_says_what_is_wrong_with_its_own(site: Site) -> None:
    (site.home / "agent.py").write_text(RULE)
    desired = site.desired(
        """\
        plugins:
          fast: {use: hello}
          ops:
            use: ./agent.py
            config:
              route: fast
              fallbacks: [fast, ghost, ops]
          bad: {use: ./agent.py, config: {route: crash}}
          worse: {use: ./agent.py, config: {route: fast, zebra: 1}}
        """
    )
    assert [(issue.code, issue.row, issue.line, issue.col) for issue in desired.issues] == [
        ("E0510", "ops", 7, 25), ("W0510", "ops", 7, 32), ("E0511", "bad", 8, 14), ("E0401", "worse", 9, 50),
    ]  # fmt: skip
    messages = told(desired)
    assert messages[0] == "E0510 ops: config.fallbacks[1]: there is no route 'ghost'"
    assert "RuntimeError: crash" in messages[2]
    assert f"({site.home / 'agent.py'}:" in messages[2]


def test_a_rule_sees_rows_that_are_invalid(site: Site) -> None:
    (site.home / "agent.py").write_text(RULE)
    desired = site.desired(
        "plugins: {fast: {use: hello, config: {zebra: 1}}, a: {use: ./agent.py, config: {route: fast}}}"
    )
    assert [issue.code for issue in desired.issues] == ["E0401"]

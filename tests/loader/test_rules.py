"""Rules about what rows lay over services: they see every layer, and refuse one where it is written."""

from dshd.loader.sources import read
from dshd.loader.spec import Desired
from dshd.testing.loader import Site

RULE = """
from dshd import Config, Context, plugin

seen = []

def rule(view):
    for path, row in view.rows.items():
        for index, (service, layer) in enumerate(row.intercept):
            for field in layer if service == "speech" else ():
                if field != "voice":
                    view.refuse_layer(path, index, field, f"there is no {field!r}, only 'voice'")

@plugin("speech", validate=rule)
async def speech(ctx: Context, config: Config) -> None: ...
"""


def desired_of(site: Site, text: str) -> Desired:
    """What a configuration describes, with everything that is wrong about it."""
    site.write(text)
    return read(site.sources()).desired


def test_a_rule_refuses_a_layer_of_any_row_where_it_is_written(site: Site) -> None:
    (site.home / "speech.py").write_text(RULE)
    desired = desired_of(
        site,
        """\
        plugins:
          speech: {use: ./speech.py}
          fine: {use: hello, intercept: {speech: {voice: low}, other: {volume: 3}}}
          loud:
            use: hello
            intercept:
              speech: {voice: low,
                       volume: 3}
        """,
    )
    assert [(issue.code, issue.row, issue.line, issue.col) for issue in desired.issues] == [("E0510", "loud", 8, 16)]
    (issue,) = desired.issues
    assert issue.message == "intercept.speech.volume: there is no 'volume', only 'voice'"


def test_a_layer_of_a_group_is_refused_once_and_the_right_one_of_several(site: Site) -> None:
    (site.home / "speech.py").write_text(RULE)
    desired = desired_of(
        site,
        """\
        plugins:
          speech: {use: ./speech.py}
          night:
            intercept: {speech: {voice: low}}
            group:
              deep:
                intercept: {speech: {volume: "${env:VOLUME:-9}"}}
                group:
                  owl: {use: hello, intercept: {speech: {voice: high}}}
                  bat: {use: hello}
        """,
    )
    assert [(issue.row, issue.line) for issue in desired.issues] == [("night/deep/bat", 7)]

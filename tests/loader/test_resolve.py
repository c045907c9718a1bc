"""What `use` means, and what is said when it means nothing."""

import importlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dshd.loader import resolve
from dshd.loader.imports import ResolveError
from dshd.loader.modules import LOCAL
from dshd.loader.resolve import Found, Resolver

PLUGIN = """
from dshd import Config, Context, plugin

@plugin({name!r})
async def {attribute}(ctx: Context, config: Config) -> None: ...
"""


def source(name: str = "greet", attribute: str | None = None, head: str = "", tail: str = "") -> str:
    return head + PLUGIN.format(name=name, attribute=attribute or name) + tail


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def clean_modules() -> Iterator[None]:
    """Take out what a test has imported, and the names it has put into the package of plugins."""
    package = importlib.import_module("dshd_plugins")
    before, names, path = set(sys.modules), dict(vars(package)), list(package.__path__)
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("dshd_plugins", "mine", "other", "vendor"):
            del sys.modules[name]
    package.__path__[:] = path
    for name in set(vars(package)) - set(names):
        delattr(package, name)


@pytest.fixture
def bundled(tmp_path: Path) -> Path:
    """A further directory of `dshd_plugins`."""
    directory = tmp_path / "bundled"
    directory.mkdir()
    importlib.import_module("dshd_plugins").__path__.append(str(directory))
    return directory


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on the import path."""
    directory = tmp_path / "site"
    directory.mkdir()
    monkeypatch.syspath_prepend(directory)
    return directory


def install(site: Path, points: dict[str, str], dist: str = "vendor") -> None:
    """What an installer leaves of a distribution with these entry points."""
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    write(site / f"{dist}-1.0.dist-info" / "METADATA", f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
    write(site / f"{dist}-1.0.dist-info" / "entry_points.txt", f"[dshd.plugins]\n{lines}")


def refused(use: str, base: Path | str = "/", resolver: Resolver | None = None) -> ResolveError:
    with pytest.raises(ResolveError) as caught:
        (resolver or Resolver()).resolve(use, str(base))
    return caught.value


# -- names -------------------------------------------------------------------------------------------------------------


def test_a_name_is_a_module_of_dshd_plugins() -> None:
    found = Resolver().resolve("hello", "/")
    assert (found.plugin.name, found.origin) == ("hello", "dshd_plugins.hello:hello")
    assert found.code is not None
    assert found.code.endswith("plugins/hello.py")
    assert found.version is not None


def test_dashes_and_underscores_are_equal(bundled: Path) -> None:
    write(bundled / "shell_local.py", source("shell_local"))
    resolver = Resolver()
    assert resolver.resolve("shell-local", "/") is resolver.resolve("shell_local", "/")


def test_a_name_is_an_entry_point(site: Path) -> None:
    write(site / "vendor" / "__init__.py", "")
    write(site / "vendor" / "parts.py", source("first") + source("second"))
    install(site, {"vendor-first": "vendor.parts:first", "second": "vendor.parts:second [extra]"})
    resolver = Resolver()
    assert resolver.resolve("vendor_first", "/").plugin.name == "first"
    assert resolver.resolve("second", "/").origin == "vendor.parts:second"
    assert resolver.resolve("vendor.parts:second", "/") is resolver.resolve("second", "/")
    assert resolver.resolve("second", "/").code == str(site / "vendor")
    assert {"vendor_first", "second", "hello"} <= set(resolver.names())


def test_an_entry_point_that_is_installed_later_is_found(site: Path) -> None:
    resolver = Resolver()
    assert refused("late", resolver=resolver).code == "0311"
    write(site / "vendor.py", source("late"))
    install(site, {"late": "vendor"})
    assert resolver.resolve("late", "/").plugin.name == "late"


def test_a_module_and_an_entry_point_of_one_name_are_an_error_that_names_both(site: Path) -> None:
    write(site / "vendor.py", source("hello"))
    install(site, {"hello": "vendor:hello"})
    error = refused("hello")
    assert error.code == "0312"
    assert "dshd_plugins.hello" in str(error)
    assert "'vendor:hello'" in str(error)
    assert Resolver().resolve("vendor:hello", "/").plugin.name == "hello"


def test_an_entry_point_for_the_bundled_module_itself_is_no_clash(site: Path) -> None:
    install(site, {"hello": "dshd_plugins.hello:hello"})
    assert Resolver().resolve("hello", "/").origin == "dshd_plugins.hello:hello"


def test_two_entry_points_of_one_name_are_an_error(site: Path) -> None:
    install(site, {"twice": "vendor:a"})
    install(site, {"twice": "other:b"}, dist="other")
    error = refused("twice")
    assert error.code == "0312"
    assert "'vendor:a'" in str(error)
    assert "'other:b'" in str(error)


def test_an_unknown_name_comes_with_the_nearest() -> None:
    error = refused("helo")
    assert (error.code, str(error), error.hint) == ("0311", "there is no plugin 'helo'", "did you mean 'hello'?")


@pytest.mark.parametrize(
    ("use", "code", "hint"),
    [
        ("", "0311", "NAME"),
        ("hello:", "0311", "pkg.mod:attr"),
        ("hello:a-b", "0311", "pkg.mod:attr"),
        ("plugins/x.py", "0311", "./plugins/x.py"),
        ("x.py", "0311", "./x.py"),
        ("${env:PLUGIN}", "0317", ""),
        ("no_such_package.mod", "0311", ""),
        ("dshd_plugins.helo", "0311", "hello"),
        ("hello.inside", "0311", ""),
        ("nothing_like_it:attr", "0311", ""),
    ],
)
def test_what_names_no_plugin_says_so(use: str, code: str, hint: str) -> None:
    error = refused(use)
    assert error.code == code
    assert hint in (error.hint or "")


# -- modules and attributes --------------------------------------------------------------------------------------------


def test_a_module_gives_its_only_plugin_and_not_one_it_imports(site: Path) -> None:
    write(site / "other.py", source("borrowed"))
    write(site / "mine.py", source("own", head="from other import borrowed\n", tail="\nalso = own\n"))
    assert Resolver().resolve("mine:own", "/").plugin.name == "own"
    write(site / "vendor.py", "from other import borrowed\n")
    error = refused("vendor:gone")
    assert (error.code, error.hint) == ("0315", "its plugins are: borrowed")


def test_a_module_with_several_plugins_wants_an_attribute(bundled: Path) -> None:
    write(bundled / "pair.py", source("left") + source("right"))
    error = refused("pair")
    assert error.code == "0314"
    assert "left, right" in str(error)
    assert error.hint == "say which one: pair:left or pair:right"
    assert Resolver().resolve("pair:right", "/").plugin.name == "right"
    assert refused("pair:lefd").hint == "did you mean 'left'?"


def test_a_module_without_a_plugin_of_its_own_says_so(bundled: Path) -> None:
    write(bundled / "empty.py", "x = 1\n")
    assert (refused("empty").code, refused("empty:x").code) == ("0314", "0315")
    assert "no plugin but int" in str(refused("empty:x"))
    write(bundled / "borrower.py", "from dshd_plugins.hello import hello\n")
    assert refused("borrower").hint == "it imports some: write borrower:hello"


def test_a_package_may_take_its_plugin_from_a_module_inside(bundled: Path) -> None:
    write(bundled / "browser" / "__init__.py", "from .page import browser\n")
    write(bundled / "browser" / "page.py", source("browser"))
    found = Resolver().resolve("browser", "/")
    assert (found.plugin.name, found.code) == ("browser", str(bundled / "browser"))


# -- paths -------------------------------------------------------------------------------------------------------------


def test_a_file_lies_beside_the_file_that_names_it(tmp_path: Path) -> None:
    write(tmp_path / "parts" / "greet.py", source("greet"))
    resolver = Resolver()
    found = resolver.resolve("./greet.py", str(tmp_path / "parts"))
    assert found.origin == f"{tmp_path / 'parts' / 'greet.py'}:greet"
    assert found.plugin.body.__module__.startswith(f"{LOCAL}.greet_")
    assert resolver.resolve("./parts/greet.py:greet", str(tmp_path)).plugin is found.plugin
    assert resolver.resolve("../parts/greet.py", str(tmp_path / "parts")).plugin is found.plugin
    assert resolver.resolve(str(tmp_path / "parts" / "greet.py"), "/").plugin is found.plugin


def test_equal_names_of_files_shadow_nothing(tmp_path: Path) -> None:
    for directory in ("a", "b"):
        write(tmp_path / directory / "json.py", source(directory, attribute="it"))
    resolver = Resolver()
    names = {resolver.resolve("./json.py", str(tmp_path / each)).plugin.name for each in ("a", "b")}
    assert names == {"a", "b"}
    assert importlib.import_module("json").dumps({}) == "{}"


def test_a_directory_is_a_package(tmp_path: Path) -> None:
    write(tmp_path / "kit" / "__init__.py", "from .deep.part import kit\n")
    write(tmp_path / "kit" / "deep" / "__init__.py", "")
    write(tmp_path / "kit" / "deep" / "part.py", source("kit", head="from ..words import WORD\n"))
    write(tmp_path / "kit" / "words.py", "WORD = 'x'\n")
    assert Resolver().resolve("./kit", str(tmp_path)).plugin.name == "kit"
    assert list(tmp_path.rglob("__pycache__")) == []


@pytest.mark.parametrize(
    ("use", "words", "hint"),
    [
        ("./gone.py", "there is no plugin at", ""),
        ("./greet", "there is no plugin at", "did you mean './greet.py'?"),
        ("./bare", "has no __init__.py", ""),
        ("./notes.txt", "does not end with .py", ""),
    ],
)
def test_a_path_without_a_plugin_says_so(tmp_path: Path, use: str, words: str, hint: str) -> None:
    write(tmp_path / "greet.py", source())
    write(tmp_path / "bare" / "part.py", "")
    write(tmp_path / "notes.txt", "")
    error = refused(use, tmp_path)
    assert error.code == "0316"
    assert words in str(error)
    assert error.hint == (hint or None)


# -- errors inside -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ("import no_such_module_at_all\n", "ModuleNotFoundError: No module named 'no_such_module_at_all'", 1),
        ("from dshd import Nothing\n", "ImportError: cannot import name 'Nothing'", 1),
        ("\nimport mine.missing\n", "ModuleNotFoundError", 2),
        ("x = 1\nx.y\n", "AttributeError: 'int' object has no attribute 'y'", 2),
        ("\n\ndef f(:\n", "SyntaxError: ", 3),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3", 2),
        ("from dshd import Config\nclass A(Config):\n    x: 'Nope' = object\nA()\n", "PydanticUserError", 4),
    ],
)
def test_an_error_inside_a_plugin_is_shown_as_itself_with_its_place(
    tmp_path: Path, text: str, words: str, line: int
) -> None:
    path = write(tmp_path / "broken.py", text)
    error = refused("./broken.py", tmp_path)
    assert error.code == "0313"
    assert words.partition(":")[0] in str(error)
    assert f"({path}:{line})" in str(error)


def test_an_error_deep_inside_is_blamed_on_the_plugins_own_line(tmp_path: Path) -> None:
    path = write(tmp_path / "broken.py", "import json\n\njson.loads('{')\n")
    assert f"({path}:3)" in str(refused("./broken.py", tmp_path))


def test_a_failed_import_of_a_parent_is_no_unknown_plugin(site: Path) -> None:
    write(site / "mine" / "__init__.py", "import ghost_of_a_module\n")
    write(site / "mine" / "part.py", source())
    error = refused("mine.part")
    assert error.code == "0313"
    assert "ghost_of_a_module" in str(error)
    assert f"({site / 'mine' / '__init__.py'}:1)" in str(error)


def test_a_corrected_plugin_is_found_at_the_next_try_however_soon(bundled: Path) -> None:
    resolver = Resolver()
    for number in range(5):
        text = source("quick", head=f"from .part import NUMBER\nassert NUMBER == {number}\n")
        wrong = text.replace(f"== {number}", f"== {9 - number}")
        write(bundled / "quick" / "__init__.py", wrong)
        write(bundled / "quick" / "part.py", f"NUMBER = {number}\n")
        assert refused("quick", resolver=resolver).code == "0313"
        assert str(bundled / "quick") in resolver.watched()
        assert "dshd_plugins.quick.part" not in sys.modules
    write(bundled / "quick" / "__init__.py", text)
    assert resolver.changed() == {str(bundled / "quick"): (str(bundled / "quick" / "__init__.py"),)}
    assert resolver.resolve("quick", "/").plugin.name == "quick"
    assert resolver.changed() == {}


def test_a_module_without_a_plugin_is_read_again_at_the_next_try(bundled: Path) -> None:
    resolver = Resolver()
    write(bundled / "late.py", "x = 1\n")
    assert refused("late", resolver=resolver).code == "0314"
    write(bundled / "late.py", source("late"))
    assert resolver.resolve("late", "/").plugin.name == "late"


def test_an_import_that_hangs_holds_up_only_those_who_want_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "PATIENCE", 0.2)
    write(
        tmp_path / "hangs.py",
        "import time, pathlib\nwhile not pathlib.Path(__file__ + '.go').exists(): time.sleep(0.01)\n",
    )
    write(tmp_path / "greet.py", source())
    resolver = Resolver()
    thread = threading.Thread(target=lambda: refused("./hangs.py", tmp_path, resolver))
    thread.start()
    try:
        deadline = time.monotonic() + 5
        while not any(name.startswith(f"{LOCAL}.hangs_") for name in sys.modules) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert resolver.resolve("./greet.py", str(tmp_path)).plugin.name == "greet"
        error = refused("./hangs.py", tmp_path, resolver)
        assert error.code == "0318"
        assert "still being imported" in str(error)
    finally:
        write(tmp_path / "hangs.py.go", "")
        thread.join()


def test_one_plugin_is_imported_once_by_many_threads(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write(tmp_path / "greet.py", source(tail=f"\nwith open({str(log)!r}, 'a') as log: log.write('x')\n"))
    resolver = Resolver()
    found: list[Found] = []
    threads = [
        threading.Thread(target=lambda: found.append(resolver.resolve("./greet.py", str(tmp_path)))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.read_text() == "x"
    assert len({id(each.plugin) for each in found}) == 1


def test_all_installed_plugins_are_listed_with_those_that_fail(bundled: Path) -> None:
    write(bundled / "broken.py", "1 / 0\n")
    write(bundled / "_private.py", "1 / 0\n")
    found, errors = Resolver().all()
    assert found["hello"].plugin.name == "hello"
    assert "ZeroDivisionError" in str(errors["broken"])
    assert "_private" not in errors

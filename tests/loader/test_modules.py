"""Changed plugin code: noticed by content, imported afresh beside the old, kept or taken back whole."""

import importlib
import os
import py_compile
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest

from dshd.loader.imports import ResolveError
from dshd.loader.modules import Unit, look
from dshd.loader.resolve import CodeReload, Found, Resolver

PLUGIN = """
from dshd import Config, Context, plugin

class Settings(Config):
    word: str = {word!r}

@plugin("kit", config=Settings)
async def kit(ctx: Context, config: Settings) -> None: ...
"""


_numbers = count()


class Kit:
    """A package of `dshd_plugins`, of two modules that import each other, and a resolver that has it."""

    def __init__(self, directory: Path) -> None:
        # A name of its own, since it stays known for as long as the process lives that this is imported from source.
        self.name = f"kit{next(_numbers)}"
        self.module = f"dshd_plugins.{self.name}"
        self.directory = directory / self.name
        self.log = directory / "log"
        self.directory.mkdir(parents=True)
        self.write("one", imports=True)
        self.resolver = Resolver()
        self.old = self.find()

    def write(self, word: str, imports: bool = False) -> None:
        self.file("__init__", f"from .a import kit\n{self._note('init')}")
        self.file("a", f"{self._note('a')}from . import b\n{PLUGIN.format(word=word)}")
        self.file("b", f"{self._note('b')}from . import a\nWORD = {word!r}\n")

    def _note(self, who: str) -> str:
        return f"with open({str(self.log)!r}, 'a') as log: log.write('{who} ')\n"

    def file(self, name: str, text: str) -> None:
        (self.directory / f"{name}.py").write_text(text)

    def find(self) -> Found:
        return self.resolver.resolve(self.name, "/")

    def word(self) -> str:
        return str(self.find().plugin.config().word)

    def refreshed(self) -> CodeReload:
        reload = self.resolver.refresh()
        assert reload is not None
        return reload

    def modules(self) -> dict[str, ModuleType]:
        return {name: module for name, module in sys.modules.items() if name.startswith(self.module)}


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    package = importlib.import_module("dshd_plugins")
    path = list(package.__path__)
    package.__path__.append(str(tmp_path / "bundled"))
    yield Kit(tmp_path / "bundled")
    package.__path__[:] = path
    for name in [name for name in sys.modules if name.startswith("dshd_plugins.kit")]:
        del sys.modules[name]
    for name in [name for name in vars(package) if name.startswith("kit")]:
        delattr(package, name)


def test_nothing_is_reloaded_while_nothing_has_changed(kit: Kit) -> None:
    assert kit.resolver.changed() == {}
    assert kit.resolver.refresh() is None
    os.utime(kit.directory / "a.py")
    kit.file("a", (kit.directory / "a.py").read_text())
    assert kit.resolver.changed() == {}
    assert kit.resolver.refresh() is None


def test_a_change_is_noticed_by_content_and_named(kit: Kit) -> None:
    kit.file("b", "WORD = 'two'\n")
    kit.file("new", "")
    (kit.directory / ".hidden.py").write_text("")
    (kit.directory / "notes.txt").write_text("")
    changed = (str(kit.directory / "b.py"), str(kit.directory / "new.py"))
    assert kit.resolver.changed() == {str(kit.directory): changed}


def test_a_change_of_equal_size_and_times_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    for number in range(50):
        path.write_text(f"x = {number:03}\n")
        unit = Unit(root="m", path=str(path), files=look(str(path)))
        path.write_text(f"x = {number + 500:03}\n")
        assert unit.again() is not unit


def test_a_changed_package_is_imported_afresh_as_one_beside_the_old(kit: Kit) -> None:
    old_modules = kit.modules()
    kit.write("two")
    reload = kit.refreshed()
    assert kit.word() == "two"
    assert kit.old.plugin.config().word == "one"
    assert kit.modules().keys() == old_modules.keys()
    assert not set(map(id, kit.modules().values())) & set(map(id, old_modules.values()))
    assert old_modules[f"{kit.module}.b"].WORD == "one"
    reload.commit()
    assert kit.word() == "two"
    assert kit.find().version != kit.old.version
    assert kit.resolver.refresh() is None
    assert vars(importlib.import_module("dshd_plugins"))[kit.name] is kit.modules()[kit.module]


def test_two_modules_that_import_each_other_reload_once(kit: Kit) -> None:
    kit.log.write_text("")
    kit.write("two")
    kit.refreshed().commit()
    assert sorted(kit.log.read_text().split()) == ["a", "b", "init"]


def test_discarding_puts_everything_back(kit: Kit) -> None:
    before, package = kit.modules(), importlib.import_module("dshd_plugins")
    kit.file("extra", "X = 1\n")
    kit.write("two")
    kit.file("b", "from . import a, extra\nWORD = 'two'\n")
    reload = kit.refreshed()
    assert f"{kit.module}.extra" in sys.modules
    reload.discard()
    assert kit.modules() == before
    assert vars(package)[kit.name] is before[kit.module]
    assert kit.find() is kit.old
    reload.discard()
    reload.commit()
    # What was discarded is tried again, until it is committed or written back.
    kit.refreshed().commit()
    assert kit.word() == "two"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("b", "def f(:\n", "SyntaxError"),
        ("a", "raise RuntimeError('not today')\n", "RuntimeError: not today"),
        ("b", "import sys\nsys.exit(1)\n", "SystemExit"),
        ("__init__", "x = 1\n", "defines no plugin"),
    ],
)
def test_code_that_cannot_be_imported_leaves_the_old_and_refuses_its_rows(
    kit: Kit, name: str, text: str, words: str
) -> None:
    before = kit.modules()
    good = (kit.directory / f"{name}.py").read_text()
    kit.file(name, text)
    for _ in range(2):
        reload = kit.refreshed()
        with pytest.raises(ResolveError) as caught:
            kit.find()
        assert words in str(caught.value)
        if name != "__init__":
            assert kit.modules() == before
            assert f"{kit.directory / name}.py:" in str(caught.value)
        reload.discard()
        assert kit.modules() == before
        assert kit.find() is kit.old
    kit.file(name, good)
    assert kit.resolver.refresh() is None
    assert kit.find() is kit.old


def test_code_that_fails_and_that_no_row_uses_keeps_no_other_from_being_committed(kit: Kit, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(PLUGIN.format(word="three"))
    found = kit.resolver.resolve("./other.py", str(tmp_path))
    kit.file("b", "1 / 0\n")
    other.write_text(PLUGIN.format(word="four"))
    reload = kit.refreshed()
    assert list(reload.failures) == [kit.module]
    assert set(reload.paths) == {str(kit.directory), str(other)}
    reload.commit()
    assert kit.resolver.resolve("./other.py", str(tmp_path)) is not found
    assert kit.find() is kit.old
    assert list(kit.resolver.changed()) == [str(kit.directory)]


def test_stale_bytecode_is_never_taken_and_none_is_written(kit: Kit) -> None:
    source = kit.directory / "b.py"
    kit.file("b", "from . import a\nWORD = 'two'\n")
    cached = Path(importlib.util.cache_from_source(str(source)))
    stale = kit.directory / "stale.py"
    stale.write_text("from . import a\nWORD = 'old'\n")
    py_compile.compile(str(stale), str(cached), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    stale.unlink()
    written = cached.stat().st_mtime_ns
    kit.refreshed().commit()
    assert sys.modules[f"{kit.module}.b"].WORD == "two"
    assert cached.stat().st_mtime_ns == written


def test_what_is_imported_late_after_a_reload_is_compiled_from_source_too(kit: Kit) -> None:
    kit.file("a", PLUGIN.format(word="two"))
    kit.file("late", "X = 1\n")
    kit.refreshed().commit()
    assert importlib.import_module(f"{kit.module}.late").X == 1
    assert type(sys.modules[f"{kit.module}.late"].__loader__).__name__ == "SourceOnly"


def test_a_module_that_becomes_a_package_is_followed(tmp_path: Path) -> None:
    (tmp_path / "kit.py").write_text(PLUGIN.format(word="one"))
    resolver = Resolver()
    resolver.resolve("./kit.py", str(tmp_path))
    (tmp_path / "kit.py").unlink()
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "__init__.py").write_text(PLUGIN.format(word="two"))
    reload = resolver.refresh()
    assert reload is not None
    assert reload.failures == {}
    reload.discard()


def test_the_version_depends_on_content_only(tmp_path: Path) -> None:
    versions = set()
    for place in ("here", "there"):
        directory = tmp_path / place / "kit"
        directory.mkdir(parents=True)
        (directory / "__init__.py").write_text("x = 1\n")
        (directory / "__pycache__").mkdir()
        versions.add(Unit(root="kit", path=str(directory), files=look(str(directory))).version)
    assert len(versions) == 1


def test_dshd_itself_is_never_reloaded() -> None:
    resolver = Resolver()
    found = resolver.resolve("dshd_plugins.hello:hello", "/")
    assert found.code is not None
    import dshd.testing.demonstration as demonstration

    plugins = [name for name, value in vars(demonstration).items() if type(value).__name__ == "Plugin"]
    own = resolver.resolve(f"dshd.testing.demonstration:{plugins[0]}", "/")
    assert (own.code, own.version, own.root) == (None, None, None)

"""Rows as they are written, and the overlays that change them.

A draft is a row before its keys are looked at, so that overlays merge data with data. An overlay is addressed by row
path; what it says of the rows inside a group is taken apart into one change for each of them, so that two files of a
layer cannot say different things of one field unnoticed. Layers are applied in order, the outer rows first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .includes import Source
from .issues import Issues, Mark, nearest
from .node import Node, merge
from .sections import ID, ROW_KEYS, Definition, is_id, is_mapping, section, unite

AGENTS = "agents"
"""The id above all agents' rows."""

OPTION = "if_exists"


class Draft:
    """A row with the keys it is written with; `children` if it is a group, whose members are drafts of their own."""

    __slots__ = ("agent", "broken", "children", "group_mark", "mark", "node")

    def __init__(self, node: Node, mark: Mark, *, agent: bool = False) -> None:
        self.node = node
        self.mark = mark
        self.agent = agent
        self.children: dict[str, Draft] | None = None
        self.group_mark: Mark | None = None
        self.broken = False
        """Whether it was reported to be no row at all."""


@dataclass(frozen=True, kw_only=True)
class _Change:
    """What a layer says of one row. `node` is a mapping without its group, or `null`."""

    path: str
    node: Node
    mark: Mark
    must_exist: bool
    adds: bool
    """Whether the row may be new: as a member of a group that is overlaid."""
    group: Mark | None
    """Where `group:` stands, if the row is to be one."""


class Forest:
    """All drafts: the rows of `plugins`, and the agents, which are rows below `agents`."""

    def __init__(
        self,
        plugins: Mapping[str, Definition],
        agents: Mapping[str, Definition],
        issues: Issues,
        *,
        texts: Mapping[str, str],
        complete: bool = True,
    ) -> None:
        self._issues = issues
        self._texts = texts
        self._complete = complete
        self._removed: dict[str, Mark] = {}
        self.roots: dict[str, Draft] = {}
        self.agents: dict[str, Draft] = {}
        for definition in plugins.values():
            if definition.id == AGENTS:
                hint = "agents stand in the section agents:"
                issues.error("0213", "the id 'agents' is reserved for agents", definition.mark, row="agents", hint=hint)
            else:
                self.roots[definition.id] = self._draft(definition.node, definition.mark, definition.id)
        for definition in agents.values():
            self.agents[definition.id] = self._agent(definition.node, definition.mark, definition.id)

    # -- drafts

    def _draft(self, node: Node, mark: Mark, path: str) -> Draft:
        draft = Draft(self._body(node, mark), mark)
        if not draft.node.is_mapping:
            draft.broken = not is_mapping(node, path, self._issues, "a row, which is a mapping,")
            draft.node = Node({}, mark)
        group = draft.node.get("group")
        if group is not None:
            draft.group_mark = draft.node.keys["group"]
            draft.node = _without(draft.node, "group")
            draft.children = {}
            for key, member, at in self._members(group, path):
                draft.children[key] = self._draft(member, at, f"{path}/{key}")
        return draft

    def _agent(self, node: Node, mark: Mark, name: str) -> Draft:
        draft = Draft(self._body(node, mark), mark, agent=True)
        if not draft.node.is_mapping:
            draft.broken = not is_mapping(node, f"{AGENTS}/{name}", self._issues, "a definition, which is a mapping,")
            draft.node = Node({}, mark)
        return draft

    @staticmethod
    def _body(node: Node, mark: Mark) -> Node:
        return Node({}, mark) if node.value is None else node

    def _members(self, group: Node, path: str) -> Iterator[tuple[str, Node, Mark]]:
        """The rows of a group whose ids are ids."""
        if group.value is None or not is_mapping(group, f"{path}.group", self._issues, "a mapping of ids to rows"):
            return
        for key, member in group.mapping().items():
            mark = group.keys.get(key, member.mark)
            if is_id(key, mark, f"{path}/{key}", self._issues):
                yield key, member, mark

    def paths(self) -> dict[str, Draft]:
        """Every draft by its path, the outer before the inner."""
        found: dict[str, Draft] = {f"{AGENTS}/{name}": draft for name, draft in self.agents.items()}
        waiting = list(self.roots.items())
        while waiting:
            path, draft = waiting.pop()
            found[path] = draft
            waiting += [(f"{path}/{name}", child) for name, child in (draft.children or {}).items()]
        return found

    def _siblings(self, path: str) -> dict[str, Draft] | None:
        """The mapping in which a row stands, or would stand, if there is one."""
        above = path.split("/")[:-1]
        if above == [AGENTS]:
            return self.agents
        siblings: dict[str, Draft] | None = self.roots
        for name in above:
            draft = None if siblings is None else siblings.get(name)
            siblings = None if draft is None else draft.children
        return siblings

    # -- overlays

    def overlay(self, layer: Iterable[Source]) -> None:
        """Apply all overlays of one layer."""
        changes: dict[str, _Change] = {}
        for source in layer:
            node = section(source, "overlays")
            if node is None:
                continue
            for key, member in node.mapping().items():
                for change in self._read(key, member, node.keys.get(key, member.mark)):
                    old = changes.get(change.path)
                    changes[change.path] = change if old is None else self._both(old, change)
        for path in sorted(changes, key=lambda path: (path.count("/"), path)):
            self._apply(changes[path])

    def _read(self, path: str, node: Node, mark: Mark) -> Iterator[_Change]:
        """The changes an entry of `overlays` asks for: of its row, and of the rows inside it."""
        ids = path.split("/")
        if not all(ID.fullmatch(name) for name in ids):
            hint = "a row path is ids from the root, such as nightly/shell or agents/ops"
            if "." in path and all(ID.fullmatch(name) for name in path.partition(".")[0].split("/")):
                hint = f"name the row and put the field inside: `{path.partition('.')[0]}: {{config: {{…}}}}`"
            self._issues.error("0212", f"{path!r} is no row path", mark, row=f"overlays.{path}", hint=hint)
            return
        if not self._says(node, f"overlays.{path}", "a mapping"):
            return
        option = node.get(OPTION)
        if option is not None and not isinstance(option.value, bool):
            hint = "write true or false"
            self._issues.error("0215", f"{OPTION} is {option.kind} where true or false belongs", option.mark, hint=hint)
        may_miss = option is not None and option.value is not False
        body = _without(node, OPTION) if option is not None else node
        yield from self._changes(path, body, mark, must_exist=not may_miss, adds=False)

    def _changes(self, path: str, node: Node, mark: Mark, *, must_exist: bool, adds: bool) -> Iterator[_Change]:
        group = node.get("group") if not path.startswith(f"{AGENTS}/") else None
        if group is None or group.value is None:
            yield _Change(path=path, node=node, mark=mark, must_exist=must_exist, adds=adds, group=None)
            return
        yield _Change(
            path=path,
            node=_without(node, "group"),
            mark=mark,
            must_exist=must_exist,
            adds=adds,
            group=node.keys["group"],
        )
        for key, member, at in self._members(group, path):
            place = f"{path}/{key}"
            if self._says(member, f"overlays.{place}", "a row, which is a mapping,"):
                yield from self._changes(place, member, at, must_exist=False, adds=True)

    def _says(self, node: Node, place: str, wanted: str) -> bool:
        """Whether it is a mapping, or a `null` that somebody wrote: what was only commented out removes no row."""
        if node.value is not None:
            return is_mapping(node, place, self._issues, wanted)
        line = (self._texts.get(node.mark.file) or "").splitlines()[node.mark.line - 1 : node.mark.line]
        if line and line[0][node.mark.col - 1 :].lower().startswith(("null", "~")):
            return True
        hint = "write null to remove the row, or delete this line"
        self._issues.error("0219", f"{place} says nothing", node.mark, row=place, hint=hint)
        return False

    def _both(self, first: _Change, second: _Change) -> _Change:
        """One change of what two files of a layer say of one row."""
        return _Change(
            path=first.path,
            node=unite(first.node, second.node, f"overlays.{first.path}", self._issues),
            mark=first.mark if first.must_exist or not second.must_exist else second.mark,
            must_exist=first.must_exist or second.must_exist,
            adds=first.adds or second.adds,
            group=first.group or second.group,
        )

    def _apply(self, change: _Change) -> None:
        name = change.path.rpartition("/")[2]
        siblings = self._siblings(change.path)
        draft = None if siblings is None else siblings.get(name)
        if siblings is None or draft is None:
            if siblings is None or not change.adds or change.node.value is None:
                self._absent(change)
                return
            draft = siblings[name] = Draft(Node({}, change.mark), change.mark)
        if change.node.value is None:
            del siblings[name]
            self._removed[change.path] = change.mark
            return
        if not draft.agent:
            self._check(change)
        before, after = draft.node, change.node
        if not draft.agent and _use(merge(before, after), name) != _use(before, name):
            before = _without(before, "config")
        draft.node = merge(before, after)
        if change.group is not None:
            draft.children = draft.children if draft.children is not None else {}
            draft.group_mark = change.group
        elif "group" in after.mapping():
            draft.children = draft.group_mark = None

    def _check(self, change: _Change) -> None:
        """Report unknown keys even where `null` would take them out without a trace."""
        for key, node in change.node.mapping().items():
            if key not in ROW_KEYS and node.value is None:
                hint = nearest(key, ROW_KEYS)
                self._issues.error(
                    "0214", f"a row has no key {key!r}", change.node.keys[key], row=change.path, hint=hint
                )

    def _absent(self, change: _Change) -> None:
        """Report an overlay of a row that does not exist, unless it need not, or a file that may have it is missing."""
        if not change.must_exist or not self._complete:
            return
        parts = change.path.split("/")
        removed = next((p for n in range(len(parts), 0, -1) if (p := "/".join(parts[:n])) in self._removed), None)
        if removed is not None:
            hint = f"an overlay at {self._removed[removed]} removes {removed!r}"
        elif parts[0] == "templates" and len(parts) > 1:
            hint = "templates are no rows; define another one, or change the agents that extend it"
        elif change.path == AGENTS:
            hint = "name one of them: agents/ID"
        else:
            known = self.paths()
            inside = [path for path in known if path.endswith(f"/{change.path}")]
            guess = f"did you mean {inside[0]!r}?" if inside else nearest(change.path, known)
            hint = f"{guess}; " if guess else "a new row stands under plugins: or agents:; "
            hint += f"with `{OPTION}: true` a row that does not exist is passed over"
        self._issues.error(
            "0216", f"there is no row {change.path!r} to overlay", change.mark, row=change.path, hint=hint
        )


def _use(node: Node, name: str) -> object:
    """The plugin a row names, or its id."""
    use = node.get("use")
    return name if use is None or use.value is None else use.value


def _without(node: Node, key: str) -> Node:
    if key not in node.mapping():
        return node
    value = {name: member for name, member in node.mapping().items() if name != key}
    return Node(value, node.mark, {name: mark for name, mark in node.keys.items() if name != key})

"""Settings of the process: the `daemon:` section, and the `DSHD_*` variables that shadow it.

The section is read with the rest of the configuration. What of it takes effect with a reload is in `LIVE`; what waits
for a restart is in `RESTART`, with the reason; there is nothing else.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from dshd.kernel.duration import Duration
from dshd.loader.issues import Issue, Mark, nearest
from dshd.loader.node import Node

from .peers import group_id

PREFIX = "DSHD_"
OTHERS = frozenset({"CONFIG", "SOCKET", "INSTANCE"})
"""Variables with our prefix that are no settings."""


class DaemonSettings(BaseModel):
    """The `daemon:` section: how the process behaves, as opposed to what runs in it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least serious events that are logged."""
    log_format: Literal["auto", "json", "console", "journal"] = "auto"
    """`auto`: the journal's fields under systemd, colours on a terminal, else JSON lines."""
    watch: Literal["auto", "poll", "off"] = "auto"
    """How edits of the configuration are noticed: events of the system with a rescan, rescans alone, or not at all."""
    rescan: Duration = 10.0
    """How often everything is looked at again, for events that were lost."""
    drain: Duration = 60.0
    """How long work in progress may go on when the daemon is asked to stop."""
    drain_warn_after: Duration = 60.0
    """When something replaced that is still in use is named in the log."""
    load_timeout: Duration = 30.0
    """How long a row may take to open."""
    unload_timeout: Duration = 10.0
    """How long a row may take to close."""
    timezone: str | None = None
    """The zone of schedules and of budgets' days, such as `Europe/Berlin`; by default the system's."""
    group: str | None = None
    """The group that may use the control socket beside the daemon's own user and root."""
    development: bool = False
    """Remember where in the code each contribution was made, for `dshd tree`; costs some time."""

    @field_validator("timezone")
    @classmethod
    def _zone(cls, name: str | None) -> str | None:
        if name is not None:
            try:
                zoneinfo.ZoneInfo(name)
            except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
                raise ValueError(f"there is no time zone {name!r}; write one such as Europe/Berlin, or UTC") from None
        return name

    @field_validator("group")
    @classmethod
    def _group(cls, name: str | None) -> str | None:
        if name is not None:
            try:
                group_id(name)
            except LookupError as exc:
                raise ValueError(str(exc)) from None
        return name


LIVE = {
    "log_level": "at the next log line",
    "log_format": "at the next log line",
    "rescan": "at the next rescan",
    "drain": "at the next stop",
    "drain_warn_after": "at once",
    "load_timeout": "for what opens from now on",
    "unload_timeout": "for what closes from now on",
    "group": "for who connects from now on",
    "development": "for what is contributed from now on",
}
"""Fields that a reload applies, and when that is felt."""

RESTART = {
    "watch": "the watch is set up at start",
    "timezone": "running schedules were computed with the old zone",
}
"""Fields that wait for a restart, and why."""


class OverrideError(Exception):
    """A `DSHD_*` variable has a value that its setting does not take."""


def overrides(environ: Mapping[str, str]) -> dict[str, Any]:
    """The settings that `DSHD_*` variables give. Raises `OverrideError`."""
    named = {name: f"{PREFIX}{name.upper()}" for name in DaemonSettings.model_fields}
    if not any(variable in environ for variable in named.values()):
        return {}
    # Imported here only: it costs as much as the rest of the start together.
    from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

    class Variables(DaemonSettings, BaseSettings):
        model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", env_parse_none_str="null", frozen=True)

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            source = EnvSettingsSource(settings_cls, env_prefix=PREFIX)
            source.env_vars = {key.lower(): value for key, value in environ.items()}
            return (source,)

    try:
        found = Variables()
    except ValidationError as exc:
        first = exc.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        raise OverrideError(f"{named.get(name, name)}: {first['msg'].removeprefix('Value error, ')}") from None
    return {name: getattr(found, name) for name in DaemonSettings.model_fields if name in found.model_fields_set}


def effective(section: Mapping[str, Any], over: Mapping[str, Any]) -> DaemonSettings:
    """The settings in force: the section, shadowed by the environment."""
    return DaemonSettings.model_validate({**section, **over})


def waiting(running: DaemonSettings, wanted: DaemonSettings) -> tuple[str, ...]:
    """Dotted fields that differ and wait for a restart, each with its reason."""
    return tuple(
        f"daemon.{name}: waits for a restart, because {reason}"
        for name, reason in RESTART.items()
        if getattr(running, name) != getattr(wanted, name)
    )


def applied(running: DaemonSettings, wanted: DaemonSettings) -> tuple[str, ...]:
    """Dotted fields that differ and are applied by a reload."""
    return tuple(f"daemon.{name}" for name in LIVE if getattr(running, name) != getattr(wanted, name))


def shadowed(section: Node | None, environ: Mapping[str, str]) -> list[Issue]:
    """A warning for every setting of the section that a variable shadows, and for variables that mean nothing."""
    found = []
    for name in DaemonSettings.model_fields:
        variable = f"{PREFIX}{name.upper()}"
        if section is not None and variable in environ and section.get(name) is not None:
            text = f"'daemon.{name}' is shadowed by the environment: {variable}={environ[variable]}"
            found.append(_warning("W0611", text, section.at((name,)), f"unset {variable} to let the file count"))
    known = {f"{PREFIX}{name.upper()}" for name in DaemonSettings.model_fields} | {PREFIX + name for name in OTHERS}
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in known:
            hint = nearest(variable, known) or "settings are named like the fields of 'daemon:'"
            found.append(_warning("W0612", f"the variable {variable} means nothing to dshd", None, hint))
    return found


def _warning(code: str, message: str, mark: Mark | None, hint: str) -> Issue:
    place = {} if mark is None else {"file": mark.file, "line": mark.line, "col": mark.col}
    return Issue(code=code, severity="warning", message=message, hint=hint, row="daemon", **place)  # type: ignore[arg-type]

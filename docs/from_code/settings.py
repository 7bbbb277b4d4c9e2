"""The page of the settings: every field of `Settings`, and where things lie on each system."""

import typing
from typing import Any, Final

import msgspec
from msgspec import inspect

from from_code.markdown import table
from postroom.app import config, places
from postroom.app.config import IN_DATA_DIR, SETTINGS, Settings, describe_setting, value_text
from postroom.cli import exit_codes
from postroom.toml_files import fields_of

CLIENT_WORDS: Final = {
    "POSTROOM_URL": "Address of the server to use, for commands and the stdio entry; without it, the server "
    "that left its note in the data folder.",
    "POSTROOM_TOKEN": "The server's token, for a server on another machine; without it, the file `token` of "
    "the data folder.",
    "POSTROOM_AGENT_TOKEN": "The token of the agent that acts, sent as `Postroom-Agent-Token`. "
    "Without `POSTROOM_TOKEN` and the file, also sent as the bearer token.",
    "POSTROOM_AGENT": "The agent that commands, a client's hooks and the Git guard act as; `name`, or "
    "`name@project`.",
    "POSTROOM_GUARD": "`warn`, `block` or `off`: takes the place of `guard_mode` for hooks that check. See "
    "[hooks](../hooks.md).",
    "POSTROOM_STALE": "`warn`, `block` or `off`: takes the place of `stale_write_mode` and `stale_edit_mode` "
    "for the hooks of a client. See [hooks](../hooks.md#no-edit-lost).",
    "POSTROOM_CONFIG": "The configuration file, in the place of the usual one.",
}
DEFAULT_WORDS: Final = {
    "data_dir": "by system, see below",
    "case_sensitive_paths": "`true`; on macOS `false`",
    **{name: f"`{path}` in `data_dir`" for name, path in IN_DATA_DIR.items()},
}
NO_EFFECT: Final[dict[str, str]] = {}
"""Settings that are checked and that nothing looks at yet; `tests/meta/test_source.py` compares."""


def page() -> str:
    """Return the page."""
    names = config._OLDER_NAMES  # noqa: SLF001 - to be told, not used
    older = [f"`{old}` for `{new}`" for old, new in names.items()]
    defaults = {one.name: one.default for one in msgspec.structs.fields(Settings)}
    rows = [
        (
            f"`{name}`",
            f"`{places.PREFIX}{name.upper()}`",
            _setting_default(name, defaults[name]),
            _limits(name),
            describe_setting(name),
        )
        for name in SETTINGS
    ]
    clients = [(f"`{name}`", CLIENT_WORDS[name]) for name in sorted(places.CLIENT_NAMES)]
    folders = [
        (title, f"`{_data_dir(platform)}`", f"`{_config_file(platform)}`")
        for title, platform in (("Linux and others", "linux"), ("macOS", "darwin"))
    ]
    return f"""
# Settings

Later sources win, in this order: the default, the configuration file, the environment, the flag of `postroom
up`. In the environment, names with the prefix `{places.PREFIX}` win over older ones. `postroom config show`
prints every value and its source. An unknown name, a value out of range or a duration without a unit stops
the start with exit code {exit_codes.CONFIGURATION}. The error names the value, its source and the remedy.

Durations are written with their unit: `500ms`, `90s`, `15m`, `1h`, `7d`, `2w`, `1h30m`, `2 hours`, or
ISO 8601 (`P7D`). Several values are a list in the file (`["gpu", "mill"]`), and have commas between them
in the environment (`gpu,mill`).

{table(("setting", "environment", "default", "limits", "meaning"), rows)}

{_without_effect()}The older names, which keep working: {", ".join(older)}.
`DATABASE_URL` is read as `sqlite:///path` or `sqlite+aiosqlite:///path` and as nothing else.

## The configuration file

The file is TOML: one `name = value` a line, with the names of the first column. Relative paths begin at the
folder of the file. `data_dir` cannot be set in the file, because clients do not read it: set
`{places.DATA_DIR_NAME}`.

{table(("system", "data folder", "configuration file"), folders)}

On Linux, `XDG_DATA_HOME` and `XDG_CONFIG_HOME` replace `~/.local/share` and `~/.config`.

## For commands and clients

{table(("environment", "meaning"), clients)}
"""


def _without_effect() -> str:
    if not NO_EFFECT:
        return ""
    told = ", ".join(f"`{name}` ({why})" for name, why in NO_EFFECT.items())
    return f"In this release these are checked and have no further effect: {told}.\n\n"


def _data_dir(platform: str) -> str:
    return places.data_dir({"HOME": "~"}, platform=platform).as_posix()


def _config_file(platform: str) -> str:
    return places.config_file({"HOME": "~"}, platform=platform).as_posix()


def _setting_default(name: str, default: Any) -> str:
    if name in DEFAULT_WORDS:
        return DEFAULT_WORDS[name]
    shown = value_text(default)
    return f"`{shown}`" if shown else "none"


def _limits(name: str) -> str:
    annotation = typing.get_type_hints(Settings)[name]
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(f"`{one}`" for one in typing.get_args(annotation))
    kind = fields_of(Settings)[name]
    kind = kind.type if isinstance(kind, inspect.Metadata) else kind
    return f"{kind.ge} to {kind.le}" if isinstance(kind, inspect.IntType) else ""

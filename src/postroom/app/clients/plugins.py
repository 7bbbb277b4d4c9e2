"""The set-up of Claude Code in the form of a plugin.

The plugin contains an MCP server, hooks and commands. The plugin is in a marketplace folder of postroom.

Only two entries are written to the client's files: one names the folder, and the other enables the plugin.
The removal of these two entries restores the files.
"""

import json
import re
import shutil
from contextlib import suppress
from dataclasses import replace
from typing import Final

from postroom.app.clients import json_edit
from postroom.app.clients.config_edits import ConfigEdit, Records
from postroom.app.clients.config_paths import ConfigFile, SetupScope, config_file, servers_file, switch
from postroom.app.clients.files import look, real
from postroom.app.clients.table import CLIENTS, Client, ConfigPath, Hooks, OwnFile, skill
from postroom.contracts.client_programs import NAME
from postroom.contracts.errors import ClientFileRefused
from postroom.executors.processes.asking import shown
from postroom.jsonc import NotJson
from postroom.version import __version__

_MARKET: Final = "claude-marketplace"
_PLUGIN: Final = f"{_MARKET}/{NAME}"
_ABOUT: Final = "Mail and file reservations for a team of agents"
_OWNER: Final = {"name": NAME}
_INBOX: Final = (
    "---\ndescription: Read the messages that wait for you, and do what they ask\n---\nRead your inbox "
    "with the postroom tool `fetch_inbox`. If this session is not an agent yet, first call\n"
    "`start_session`. For each message, say in a line who wrote it and what they want. Then answer what "
    "you can\nwith `reply_message`. If a message asks for an acknowledgement, call "
    "`acknowledge_message`. $ARGUMENTS\n"
)
_SEND: Final = (
    "---\ndescription: Send a message to an agent or a person\nargument-hint: NAME text\n---\nSend a "
    "message with the postroom tool `send_message`. If this session is not an agent yet, first call\n"
    "`start_session`. The first word here is the recipient, the rest is the text: $ARGUMENTS\n"
)


def _own(folder: str, name: str, text: str) -> OwnFile:
    return OwnFile(user=ConfigPath(base="machine", folder=folder, names=(name,)), text=text)


def _document(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def _as_plugin(client: Client, hooks: Hooks) -> Client:
    listed = {"name": NAME, "source": f"./{NAME}", "description": _ABOUT}
    market = {"name": NAME, "owner": _OWNER, "description": _ABOUT, "plugins": [listed]}
    about = {"name": NAME, "version": __version__, "description": _ABOUT, "author": _OWNER}
    return replace(
        client,
        user=ConfigPath(base="machine", folder=_PLUGIN, names=(".mcp.json",)),
        project=None,
        why="as a plugin, which starts the server and needs no address and no token",
        hooks=replace(
            hooks, user=ConfigPath(base="machine", folder=f"{_PLUGIN}/hooks", names=("hooks.json",))
        ),
        own_files=(
            _own(f"{_MARKET}/.claude-plugin", "marketplace.json", _document(market)),
            _own(f"{_PLUGIN}/.claude-plugin", "plugin.json", _document(about)),
            _own(f"{_PLUGIN}/commands", "inbox.md", _INBOX),
            _own(f"{_PLUGIN}/commands", "send.md", _SEND),
            skill(ConfigPath(base="machine", folder=f"{_PLUGIN}/skills", names=("postroom/SKILL.md",))),
        ),
        market=ConfigPath(base="machine", folder=_MARKET, names=("",)),
        switched_on_in=hooks.user,
    )


AS_PLUGINS: Final = {
    client.name: _as_plugin(client, client.hooks)
    for client in CLIENTS
    if client.name == "claude" and client.hooks is not None
}
"""The clients that can also be set up as a plugin, keyed by name."""


def forms(client: Client, target: SetupScope) -> list[Client]:
    """Return all forms in which a client can be set up. The plugin comes first."""
    usual = next(item for item in CLIENTS if item.name == client.name)
    other = AS_PLUGINS.get(client.name)
    return [other, usual] if other is not None and target.scope == "user" else [usual]


def form_in_place(client: Client, target: SetupScope, records: Records) -> Client:
    """Return the form in which a client is set up now, or else the default form."""
    for form in forms(client, target):
        if client.name in records.get(real(servers_file(form, target).path)).clients:
            return form
    return forms(client, target)[-1]


def form_to_write(client: Client, target: SetupScope, *, no_plugin: bool) -> tuple[Client, str]:
    """Return the form in which to set up a client, and the reason if the plugin is not used."""
    plugin, *others = forms(client, target)
    if not others or no_plugin:
        return client, ""
    # Find out why the installed client does not accept plugins; "" if it accepts them.
    program = shutil.which(client.programs[0], path=target.environment.get("PATH"))
    if program is None:
        why = f"{client.title} is not on the PATH, so setup wrote its settings instead of a plugin"
    else:
        code, text = _run(target, program, "plugin", "list", "--json")
        if code == 0 and _holds_list(text):
            why = ""
        else:
            why = (
                f"{client.title} has no plugins, so setup wrote its settings: expected a JSON list from "
                f"`{client.programs[0]} plugin list --json`, found {shown(code, text)}"
            )
    return (client, why) if why else (plugin, "")


def _holds_list(said: str) -> bool:
    """Return whether an output contains a JSON list. Lines with warnings may precede the list."""
    for begin in re.finditer(r"^\[", said, re.MULTILINE):
        with suppress(ValueError, RecursionError):
            json.JSONDecoder().raw_decode(said, begin.start())
            return True
    return False


def load_marketplace(client: Client, target: SetupScope) -> str:
    """Make the client load the marketplace now, so that its first session has the plugin.

    The marketplace is declared in a temporary folder, because the client would otherwise rewrite the settings
    of its user. After a failure, return the expected and the actual output of the client.
    """
    assert client.market is not None  # noqa: S101 - a form as a plugin has one
    folder = config_file(client.market, target).path
    words = (client.programs[0], "plugin", "marketplace", "add", "--scope", "local", str(folder))
    code, text = _run(target, *words)
    if code == 0:
        return ""
    return f"{client.title}: expected exit code 0 from `{' '.join(words)}`, found {shown(code, text)}"


def forget(client: Client, target: SetupScope) -> None:
    """Make the client remove the marketplace from its list.

    Otherwise, the client would list a marketplace whose folder no longer exists.

    The client also deletes every entry with the name of the marketplace from its file. If the file has an
    entry with that name, the entry belongs to the user, so do nothing.
    """
    switched = switch(client, target)
    if switched is None or _is_any_there(*switched):
        return
    _run(target, client.programs[0], "plugin", "marketplace", "remove", NAME)


def _is_any_there(file: ConfigFile, edits: list[ConfigEdit]) -> bool:
    """Return whether a file is unreadable, or contains an entry at the place of one of the edits."""
    try:
        text = look(file.path, file.base).text
        return any(json_edit.find(text, (*edit.path, edit.key)) is not None for edit in edits)
    except (ClientFileRefused, NotJson):
        return True


def _run(target: SetupScope, program: str, *words: str) -> tuple[int, str]:
    """Run the client in a temporary folder, and return its exit code and output."""
    executable = shutil.which(program, path=target.environment.get("PATH"))
    if executable is None:
        return 127, f"{program} is not on the PATH"
    return target.ask(executable, *words)

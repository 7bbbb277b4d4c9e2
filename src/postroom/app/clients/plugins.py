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

from postroom.app import places
from postroom.app.clients import json_edit
from postroom.app.clients.config_edits import Records
from postroom.app.clients.config_paths import SetupScope, servers_file, switch
from postroom.app.clients.files import look, real
from postroom.app.clients.table import CLIENTS, MARKET, Client, ConfigPath, Hooks, OwnFile, skill
from postroom.contracts.client_programs import NAME
from postroom.contracts.errors import ClientFileRefused
from postroom.executors.processes.asking import shown
from postroom.jsonc import NotJson
from postroom.version import __version__

_PLUGIN: Final = f"{MARKET}/{NAME}"
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
            _own(f"{MARKET}/.claude-plugin", "marketplace.json", _document(market)),
            _own(f"{_PLUGIN}/.claude-plugin", "plugin.json", _document(about)),
            _own(f"{_PLUGIN}/commands", "inbox.md", _INBOX),
            _own(f"{_PLUGIN}/commands", "send.md", _SEND),
            skill(ConfigPath(base="machine", folder=f"{_PLUGIN}/skills", names=("postroom/SKILL.md",))),
        ),
        switched_on_in=hooks.user,
    )


AS_PLUGINS: Final = {
    client.name: _as_plugin(client, client.hooks)
    for client in CLIENTS
    if client.name == "claude" and client.hooks is not None
}
"""The clients that can also be set up as a plugin, keyed by name."""


def forms(client: Client, target: SetupScope) -> list[Client]:
    """Return the forms in which a client can be set up: first the plugin, and second the settings files."""
    usual = next(item for item in CLIENTS if item.name == client.name)
    other = AS_PLUGINS.get(client.name)
    return [other, usual] if other is not None and target.scope == "user" else [usual]


def form_in_place(client: Client, target: SetupScope, records: Records) -> Client:
    """Return the form in which a client is set up, or the default form for a new client."""
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
    for begin in re.finditer(r"^\[", said, re.MULTILINE):
        with suppress(ValueError, RecursionError):
            json.JSONDecoder().raw_decode(said, begin.start())
            return True
    return False


def load_marketplace(client: Client, target: SetupScope) -> str:
    """Make the client load postroom's plugin marketplace, and return "" or the reason for a failure."""
    folder = places.machine_dir(target.environment) / MARKET
    words = (client.programs[0], "plugin", "marketplace", "add", "--scope", "local", str(folder))
    code, text = _run(target, *words)
    if code == 0:
        return ""
    return f"{client.title}: expected exit code 0 from `{' '.join(words)}`, found {shown(code, text)}"


def forget(client: Client, target: SetupScope) -> None:
    """Make the client remove postroom's plugin marketplace, unless the user has added the marketplace."""
    switched = switch(client, target)
    if switched is None:
        return
    file, edits = switched
    try:
        text = look(file.path, file.base).text
        if any(json_edit.find(text, (*edit.path, edit.key)) is not None for edit in edits):
            return
    except (ClientFileRefused, NotJson):  # the file cannot be read, so it may have such an entry
        return
    _run(target, client.programs[0], "plugin", "marketplace", "remove", NAME)


def _run(target: SetupScope, program: str, *words: str) -> tuple[int, str]:
    executable = shutil.which(program, path=target.environment.get("PATH"))
    if executable is None:
        return 127, f"{program} is not on the PATH"
    return target.ask(executable, *words)

"""Translates error messages from the terms of tools and their arguments to those of the command line.

The name of a tool becomes the command that does the same. An argument becomes an option or argument of the
command, for example, `ttl_seconds` becomes `--ttl`.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final

from postroom.cli.table import TABLE
from postroom.contracts.clock import duration_text
from postroom.contracts.errors import PostroomError, TokenRequired

COMMANDS: Final[dict[str, str]] = {
    **{name: str(row["words"]) for name, row in TABLE.items() if "path" not in row},
    "acknowledge_message": "mail ack",
    "check_file_reservations": "reservations check",
    "ensure_project": "agents register",
    "fetch_events": "events",
    "fetch_inbox": "mail inbox",
    "fetch_inbox_events": "watch",
    "fetch_thread": "mail thread",
    "file_reservation_paths": "reservations reserve",
    "get_attachment": "mail save",
    "get_message": "mail read",
    "health_check": "status",
    "mark_message_read": "mail read",
    "register_agent": "agents register",
    "release_file_reservations": "reservations release",
    "renew_file_reservations": "reservations renew",
    "reply_message": "mail reply",
    "rotate_agent_token": "agents token",
    "send_message": "mail send",
    "start_session": "agents register",
    "summarize_thread": "mail thread",
}
"""The command that corresponds to each tool."""
FOR_AGENTS: Final = {
    "ask_person": "only agents ask people",
    "create_agent_identity": "a person chooses the name with `agents register`",
    "delivery_status": "a person sees the status on the message's page and with `agents show`",
    "force_release_file_reservation": "the agent that is blocked decides this, and gives a reason",
    "list_contacts": "agents decide about their own contacts",
    "recall_message": "the sender recalls the message",
    "respond_contact": "agents decide about their own contacts",
    "set_contact_policy": "agents decide about their own contacts",
    "show_project": "a person sees the same on the project's page",
}
"""The tools without a command, with the reason."""
_NAMES: Final = "|".join(sorted(COMMANDS | FOR_AGENTS, key=len, reverse=True))
_TOOL: Final = re.compile(rf"(\bcall )?`?(?:(?:GET|POST) /v1/|(?<![\w'\"/@.-]))({_NAMES})(?![\w'\"/@-])`?")
"""Matches the name of a tool, or its address in an answer of the administration."""
_CALL: Final = re.compile(rf"call ({_NAMES}) with `(\w+)` (\w+)")
"""Matches a call of a tool with one argument and its value."""
_SWITCH: Final = re.compile(r"set `(\w+)` to true")
_PARAMETERS: Final[Mapping[str, Sequence[str]]] = {
    "agent": ("name", "acting"),
    "agent_name": ("acting", "name"),
    "attachments": ("attach",),
    "body_md": ("text",),
    "exclusive": ("shared",),
    "human_key": ("project",),
    "ids": ("ids", "message_id"),
    "include_bodies": ("bodies",),
    "kinds": ("kind",),
    "life_seconds": ("expires",),
    "message_ids": ("message_id",),
    "mode": ("refuse",),
    "name": ("name", "names"),
    "sender_name": ("acting",),
    "sha256": ("names",),
    "task_description": ("task",),
    "thread_id": ("thread_id", "thread"),
    "to": ("to", "other"),
}
"""The parameters of commands whose names differ from those of the arguments that they set."""
_SUFFIX: Final = re.compile(r"_(?:id|key|only|seconds)\Z")
_BOUND: Final = re.compile(r"(`\w+_seconds`) must be a (?:whole )?number of (at least|at most) (\d+)")
_ARGUMENT: Final = re.compile(
    r"`([a-z]\w*)(?:\[\d+\]|\.\w+)*`|(?<![\w`'\"/.-])([a-z][a-z0-9]*(?:_[a-z0-9]+)+)(?![\w`'\"/.(-])"
)
"""Matches an argument: a word in backticks, or a word with an underscore."""
_ALL_ARGUMENTS: Final = re.compile(
    r"(?:did you mean \w+\? )?the (?:arguments|fields|parameters|fields of an attachment) are: .*"
)
_PROOF_OF_AGENT: Final = (
    "set POSTROOM_AGENT_TOKEN to the agent's token, which `postroom agents token NAME` creates"
)
_LIST_OF_IDS: Final = re.compile(r"write \[([\d, ]+)\]")
_OF_THE_LIBRARY: Final = re.compile(r" or mailbox(?:\.\w+)+(?:\(\))?")


def at_the_command_line(error: PostroomError, given: Sequence[str]) -> dict[str, Any]:
    """Return an error as plain data, with a remedy that names options of the command.

    `given` are the arguments of the command.
    """
    words, parameters = _find_command(tuple(given))
    fields = error.as_dict()

    def said(text: str) -> str:
        text = _OF_THE_LIBRARY.sub(
            "", as_commands(text.replace(TokenRequired.default_remedy, _PROOF_OF_AGENT))
        )
        text = _SWITCH.sub(lambda met: f"add {_shown_for(met[1], parameters) or met[0]}", text)
        text = _ALL_ARGUMENTS.sub(f"run `{' '.join(words)} --help` to see the options", text)
        text = _BOUND.sub(_as_duration, text)
        text = _LIST_OF_IDS.sub(r"write '\1'", text)
        return _ARGUMENT.sub(lambda met: _shown_for(met[1] or met[2], parameters) or met[0], text)

    reasons = error.details.get("recipients")
    if isinstance(reasons, list):
        values = [
            {name: said(text) if name in ("message", "remedy") else text for name, text in reason.items()}
            for reason in reasons
            if isinstance(reason, dict)
        ]
        fields["details"] = {**error.details, "recipients": values}
    return {**fields, "message": said(error.message), "remedy": said(error.remedy)}


def _as_duration(met: re.Match[str]) -> str:
    return f"{met[1]} must be {met[2]} {duration_text(timedelta(seconds=int(met[3])))}"


def _shown_for(name: str, shown: Mapping[str, str]) -> str | None:
    names = (*_PARAMETERS.get(name, ()), name, _SUFFIX.sub("", name))
    return next((shown[name] for name in names if name in shown), None)


@cache
def _find_command(given: tuple[str, ...]) -> tuple[list[str], Mapping[str, str]]:
    from typer.main import get_command

    from postroom.cli.commands import tree

    command: Any = get_command(tree(*given[:1]))
    words = ["postroom"]
    for word in given:
        inner = getattr(command, "commands", {}).get(word)
        if inner is None:
            break
        command = inner
        words.append(word)
    shown = {
        param.name: next(
            (opt for opt in param.opts if opt.startswith("--")),
            str(param.metavar or param.name).partition("|")[0].strip("- ").upper(),
        )
        for param in command.params
    }
    return words, shown


def as_commands(remedy: str) -> str:
    """Replace the names of MCP tools in a remedy with commands."""
    return _TOOL.sub(_replace_word, _CALL.sub(_replace_call, remedy))


def _replace_call(met: re.Match[str]) -> str:
    tool, argument, value = met.groups()
    if tool not in COMMANDS:
        return met[0]
    words, parameters = _find_command(tuple(COMMANDS[tool].split()))
    option = _shown_for(argument, parameters) or f"--{argument}"
    given_text = f"{option} {value}" if option.startswith("--") else value
    return f"run `{' '.join(words)} {given_text}`"


def _replace_word(met: re.Match[str]) -> str:
    called, tool = met.groups()
    if tool in COMMANDS:
        return f"{'run ' if called else ''}`postroom {COMMANDS[tool]}`"
    return f"have the agent call the tool `{tool}`" if called else f"the tool `{tool}`"

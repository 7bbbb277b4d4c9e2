"""Generates commands from the table of operations. Each command calls one operation.

The module of a command defines only how the answer is shown to people.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import typer

from postroom.cli import show
from postroom.cli.client import Server, with_query
from postroom.cli.options import (
    HERE,
    Acting,
    AsJson,
    DataDir,
    Key,
    OneProject,
    Project,
    Ttl,
    completed,
    numbered,
    project_key,
)
from postroom.cli.table import TABLE
from postroom.cli.wire import ANSWER_TIMEOUT

MAX_WAIT: Final = timedelta(hours=6)
"""The time limit for an operation that takes long. The command shows its progress."""
_TYPES: Final[Mapping[str, Any]] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list[str],
}


def named_project(text: str) -> str:
    """Return the project key for a folder, a path or a slug."""
    return project_key(os.path.join(os.curdir, text) if text and Path(text).is_dir() else text)  # noqa: PTH118 - a Path drops the dot


def _folder(text: str) -> str:
    return os.path.abspath(Path(text).expanduser())  # noqa: PTH100 - resolve() would follow links


class _Kind(NamedTuple):
    option: Any = None
    """The option that all commands have for fields of this kind, or None if each command defines its own."""
    default: Any = None
    sends: Callable[[str], str] | None = None
    """Convert the text from the command line to the value to send."""


_NUMBERED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("task", "task_id"), "task"),
    "note_id": "note",
    "subscription_id": "subscription",
}
"""The kinds of things that a field names by a number, keyed by the field."""
_PLAIN: Final = _Kind()
_KINDS: Final[Mapping[str | None, _Kind]] = {
    "acting": _Kind(Acting, ...),
    "folder": _Kind(sends=_folder),
    "key": _Kind(Key),
    "named_project": _Kind(sends=named_project),
    "one_project": _Kind(OneProject, sends=project_key),
    "project": _Kind(Project, HERE, project_key),
    "ttl": _Kind(Ttl),
}
"""The kinds of options, keyed by their names in the table of operations (`Option.kind`)."""


def perform(server: Server, name: str, /, **given: object) -> dict[str, Any]:
    """Call an administration operation of a server, and return the response.

    Raises:
        ServerUnavailable: The server does not answer in time.
        PostroomError: The server returned an error. The class of the exception depends on the error code.
    """
    row = TABLE[name]
    method, path = str(row["method"]), str(row["path"])
    body = {key: item for key, item in given.items() if item is not None} if given else None
    if method == "GET":
        arguments = {
            key: "yes" if item is True else item for key, item in given.items() if item not in (None, False)
        }
        path, body = with_query(path, arguments), None
    if "doing" in row:
        return server.admin_long(str(row["doing"]), method, path, body)
    return server.admin(method, path, body)


def call(name: str, /, *, data_dir: Path | None = None, **given: object) -> dict[str, Any]:
    """Call an administration operation of the running server, and return the response.

    Raises:
        ServerUnavailable: No server runs, or the server does not answer in time.
        PostroomError: The server returned an error. The class of the exception depends on the error code.
    """
    timeout = MAX_WAIT if "doing" in TABLE[name] else ANSWER_TIMEOUT
    return perform(Server.find(data_dir=data_dir, timeout=timeout), name, **given)


def shows(app: typer.Typer, name: str) -> Callable[[Callable[..., str]], Callable[..., None]]:
    """Return a decorator that adds the command for an operation to a command group.

    The decorated function gets the server's response, and optionally the sent fields. The function returns
    the text for people.
    """
    row = TABLE[name]
    fields: list[Mapping[str, Any]] = row["fields"]
    twice = [field for field in fields if field.get("place") and "option" in field]

    def add(text: Callable[..., str]) -> Callable[..., None]:
        takes_sent = len(inspect.signature(text).parameters) > 1

        def command(*, data_dir: Path | None = None, as_json: bool = False, **given: Any) -> None:
            sent = {}
            for field in fields:
                value, sends = given[field["name"]], _KINDS.get(field.get("kind"), _PLAIN).sends
                if field in twice and (other := given[_hidden(field)]) is not None:
                    if value is not None:
                        raise typer.BadParameter(f"use either {value} or {field['option']} {other}, not both")
                    value = other
                value = None if value == [] else value
                sent[field["name"]] = value if value is None or sends is None else sends(value)
            if "path" in row:
                with show.progress(as_json=as_json or "doing" not in row):
                    answer = call(name, data_dir=data_dir, **sent)
            else:
                answer = show.fields(Server.find(data_dir=data_dir).call_tool(name, sent))
            show.answer(
                answer, as_json=as_json, text=lambda: text(answer, sent) if takes_sent else text(answer)
            )

        shared: dict[str, tuple[Any, Any]] = {"data_dir": (DataDir, None), "as_json": (AsJson, False)}
        taken = {field["name"]: _parameter_type(field) for field in fields} | shared
        taken |= {_hidden(item): _parameter_type(item, hidden=True) for item in twice}
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(
                    item,
                    inspect.Parameter.KEYWORD_ONLY,
                    annotation=kind,
                    default=inspect.Parameter.empty if default is ... else default,
                )
                for item, (kind, default) in taken.items()
            ]
        )
        command.__annotations__ = {item: kind for item, (kind, _) in taken.items()}
        app.command(str(row["words"]).split()[-1], help=str(row["help"]))(command)
        return command

    return add


def _hidden(field: Mapping[str, Any]) -> str:
    return f"{field['name']}_option"


def _parameter_type(field: Mapping[str, Any], *, hidden: bool = False) -> tuple[Any, Any]:
    shared = _KINDS.get(field.get("kind"), _PLAIN)
    if shared.option is not None:
        return shared.option, shared.default
    kind = Literal[tuple(field["choices"])] if "choices" in field else _TYPES[field["type"]]
    default = ... if field.get("required") else field.get("default", False if kind is bool else None)
    fields: dict[str, Any] = {"help": field.get("help"), "metavar": field.get("metavar")}
    if "complete" in field:
        fields["autocompletion"] = completed(field["complete"])
    if kind is int and field["name"] in _NUMBERED:
        fields["parser"] = numbered(_NUMBERED[field["name"]])
        fields["metavar"] = fields["metavar"] or (None if field.get("place") and not hidden else "ID")
    elif kind is int:
        fields |= {"min": field.get("least"), "max": field.get("most")}
    elif "choices" in field:
        fields["case_sensitive"] = False
    if field.get("place") and not hidden:
        info: Any = typer.Argument(**fields | {"metavar": fields["metavar"] or field["name"].upper()})
    else:
        info = typer.Option(
            field.get("option") or f"--{field['name'].replace('_', '-')}", hidden=hidden, **fields
        )
    return Annotated[kind if default is not None else kind | None, info], default

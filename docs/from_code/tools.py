"""The page of the tools: the table of operations, their arguments, and the types of their answers."""

import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Any

import msgspec

from from_code.markdown import sentence, table
from postroom.contracts import errors
from postroom.contracts.operations import Operation
from postroom.contracts.tokens import SCOPES
from postroom.mail.commands import Command
from postroom.mail.operations import MAIL_OPERATIONS
from postroom.mcp_server.profiles import CORE, IN_RUNS
from postroom.mcp_server.resources import RESOURCES
from postroom.mcp_server.server import definition_tokens


def page() -> str:
    """Return the page."""
    views: dict[str, type] = {}
    index = table(
        ("tool", "profile", "kind", "scopes", "effect"),
        [
            (f"[`{one.name}`](#{one.name})", _profile(one), _kind(one), _scopes(one), one.summary)
            for one in MAIL_OPERATIONS
        ],
    )
    resources = [
        (f"`{one.template}`", one.description, f"[`{one.operation}`](#{one.operation})") for one in RESOURCES
    ]
    sections = "\n\n".join(_tool(one, views) for one in MAIL_OPERATIONS)
    return f"""
# Tools

The tools of the MCP server. `/mcp/core` lists {len(CORE)} of the {len(MAIL_OPERATIONS)}, and `ask_person`
to runs that the server has started; `/mcp/full` lists all. The setting `profile` decides for `/mcp` (default:
`full`). See [How many tools](../start.md#how-many-tools). The definitions cost a model about
{definition_tokens("core"):,} tokens in `core` and {definition_tokens("full"):,} in `full`, by the server's
own cautious estimate. MCP's hints tell clients the kind of a tool. No tool of `core` is destructive, and no
tool reaches beyond this server.

Every tool that changes something, except `rotate_agent_token`, accepts `idempotency_key`. The same call under
the same key is performed once and gets the same answer each time. Another call under a used key is refused
with `idempotency_conflict`. Times in answers are ISO 8601 in UTC with milliseconds. An error is a tool result
with `isError` and `structuredContent.error`: see [errors](errors.md). Answers that are lists are in
`structuredContent.result`. A [named token](../security.md#named-tokens) needs every scope in a tool's row,
and sees no other tools.

{index}

{sections}

# Answers

The objects in the tools' answers. A `?` marks a key that may be missing.

{_views(views)}

# Resources

The same data for clients that read or subscribe. A notice of a changed resource is a hint, and never counts
as delivery.

{table(("address", "content", "same as the tool"), resources)}
"""


def _profile(operation: Operation) -> str:
    if operation.name in IN_RUNS:
        return "core in runs, full"
    return "core, full" if operation.name in CORE else "full"


def _kind(operation: Operation) -> str:
    if not operation.changes:
        return "looks"
    hints = [("destructive", operation.destructive), ("idempotent", operation.repeatable)]
    return ", ".join(["changes", *(name for name, holds in hints if holds)])


def _scopes(operation: Operation) -> str:
    return ", ".join(f"`{one}`" for one in SCOPES if one in operation.needs)


def _tool(operation: Operation, views: dict[str, type]) -> str:
    arguments = table(("argument", "type", "default", "meaning"), _arguments(operation.command))
    refusals = _refusals(operation.run)
    parts = [f"## {operation.name}", operation.description]
    parts.append(arguments if arguments.count("\n") > 1 else "Takes no arguments.")
    parts.append(f"Answers {_answer(operation, views)}.")
    if refusals:
        parts.append("Errors, in addition to those of every call:\n\n" + refusals)
    return "\n\n".join(parts)


def _arguments(command: type[Command]) -> Iterator[tuple[str, str, str, str]]:
    _, components = msgspec.json.schema_components([command])
    schema = components[command.__name__]
    required = schema.get("required", [])
    for name, given in sorted(schema["properties"].items(), key=lambda pair: pair[0] == "idempotency_key"):
        default = "required" if name in required else _default(given.get("default"))
        meaning = "see above" if name == "idempotency_key" else _meaning(given)
        yield f"`{name}`", _type_of(given, components), default, sentence(meaning)


def _default(value: object) -> str:
    return "" if value in (None, "", []) else f"`{msgspec.json.encode(value).decode()}`"


def _meaning(schema: Mapping[str, Any]) -> str:
    options = [schema, *schema.get("anyOf", ())]
    return next((one["description"] for one in options if one.get("description")), "")


def _type_of(schema: Mapping[str, Any], components: Mapping[str, Any]) -> str:
    """Return a JSON schema in words."""
    if "$ref" in schema:
        inner = components[schema["$ref"].rsplit("/", 1)[-1]]
        return "object of " + ", ".join(f"`{name}`" for name in inner["properties"])
    if "anyOf" in schema:
        kept = [one for one in schema["anyOf"] if one != {"type": "null"}]
        return " or ".join(_type_of(one, components) for one in kept)
    if "enum" in schema:
        return "one of " + ", ".join(f"`{one}`" for one in schema["enum"])
    if schema["type"] == "array":
        return f"list{_bounds(schema, 'Items')} of {_type_of(schema['items'], components)}"
    if schema["type"] == "string":
        return "string" + _bounds(schema, "Length", " characters")
    return str(schema["type"]) + _bounds(schema, "imum")


def _bounds(schema: Mapping[str, Any], ending: str, unit: str = "") -> str:
    least, most = schema.get(f"min{ending}"), schema.get(f"max{ending}")
    if most is None:
        return "" if least is None else f" (at least {least}{unit})"
    shown = "2^53" if most == 2**53 else most
    return f" (at most {shown}{unit})" if not least else f" ({least} to {shown}{unit})"


def _answer(operation: Operation, views: dict[str, type]) -> str:
    return _annotation(typing.get_type_hints(operation.run)["return"], views)


def _annotation(kind: Any, views: dict[str, type]) -> str:
    """Return a type in words, and note the objects it names."""
    origin = typing.get_origin(kind)
    if typing.is_typeddict(kind):
        views.setdefault(kind.__name__, kind)
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if origin is list:
        return f"list of {_annotation(typing.get_args(kind)[0], views)}"
    if origin is dict:
        return f"object of {_annotation(typing.get_args(kind)[1], views)}"
    if origin in (typing.Union, UnionType):
        return " or ".join(_annotation(one, views) for one in typing.get_args(kind))
    if origin is typing.Literal:
        return "one of " + ", ".join(f"`{one}`" for one in typing.get_args(kind))
    names = {str: "string", int: "integer", bool: "boolean", float: "number", NoneType: "null"}
    return names[kind]


def _views(views: dict[str, type]) -> str:
    done: dict[str, str] = {}
    while waiting := [name for name in views if name not in done]:
        for name in waiting:
            done[name] = _view(views[name], views)
    return "\n\n".join(done[name] for name in sorted(done))


def _view(kind: Any, views: dict[str, type]) -> str:
    rows = [
        (f"`{name}`{'' if name in kind.__required_keys__ else '?'}", _annotation(one, views))
        for name, one in typing.get_type_hints(kind).items()
    ]
    said = inspect.cleandoc(kind.__doc__ or _said_below(kind))
    return f"## {kind.__name__}\n\n{said}\n\n{table(('key', 'type'), rows)}"


def _said_below(kind: Any) -> str:
    """Return the text under the definition of a type that is made by a call and can hold no docstring."""
    source = inspect.getsource(sys.modules[kind.__module__])
    found = re.search(rf'^{kind.__name__} = TypedDict\(.*?^\)\n"""(.+?)"""', source, re.DOTALL | re.MULTILINE)
    if found is None:
        raise LookupError(f"{kind.__name__} has no words below it")
    return found[1]


def _refusals(run: Callable[..., Any]) -> str:
    _, found, text = (inspect.getdoc(run) or "").partition("Raises:\n")
    if not found:
        return ""
    entries = re.split(r"\n {4}(?! )", "\n" + text.rstrip())[1:]
    lines = []
    for entry in entries:
        names, _, why = " ".join(entry.split()).partition(": ")
        codes = ", ".join(f"`{getattr(errors, name.strip()).code}`" for name in names.split(","))
        lines.append(f"- {codes}: {why}")
    return "\n".join(lines)

"""Edits a table in a TOML text in place, and undoes the edit. No other byte changes.

The text is edited line by line. The result is parsed with the standard library. If anything except postroom's
table has another meaning than before, an error is raised.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Final

from postroom.app.clients.config_edits import AppliedEdit, ConfigEdit, fits

_HEADER: Final = re.compile(r"^[ \t]*\[", re.MULTILINE)
_TOKEN: Final = re.compile(
    r""""{3}(?:\\.|[^\\])*?"{3,5}|\'{3}.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|\#[^\n]*""", re.DOTALL
)
_ASSIGNED: Final = re.compile(r"[ \t]*([A-Za-z0-9_-]+)[ \t]*=")


class NotToml(ValueError):
    """The text is not TOML, or postroom's table has an unsupported form."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


def put(text: str, edit: ConfigEdit, client: str) -> tuple[str, list[AppliedEdit]]:
    """Write postroom's table to a TOML text, and return the text and the record of each edit.

    Raises:
        NotToml: The text cannot be parsed, or the table cannot be added to it.
    """
    path = (*edit.path, edit.key)
    value = find(text, path)
    if value is not None and fits(value, edit):
        return text, []
    end = _line_end(text)
    lines = _lines(edit.value, end)
    if value is None:
        before = "" if not text.removeprefix("\ufeff") else end if text.endswith("\n") else end + end
        result = f"{text}{before}[{'.'.join(path)}]{end}{lines}"
        # Raise if the parent table is written in braces, because TOML does not allow such a table to be
        # extended.
        try:
            _read(result)
        except NotToml as error:
            name = ".".join(edit.path)
            braces = re.search(rf"^[ \t]*[\"']?{re.escape(name)}[\"']?[ \t]*=", text, re.MULTILINE)
            if braces is None:
                raise
            line = text.count("\n", 0, braces.end()) + 1
            # Write a table of plain values as an inline table, in braces.
            inline = "{ " + _lines(edit.value, "\n").strip().replace("\n", ", ") + " }"
            raise NotToml(
                f"line {line}: found `{name}` as an inline table, in braces, and TOML does not allow "
                f"[{name}.{edit.key}] to extend it; expected its entries as tables, like [{name}.x]",
                remedy=(
                    f"write each entry inside the braces as a table, [{name}.x] with its settings on the "
                    "lines below, and run this command again; or add this entry inside the braces by "
                    f"hand: {edit.key} = {inline}"
                ),
            ) from error
        applied = AppliedEdit(client=client, kind="table", path=path, before=before)
    else:
        start, stop = _body(text, path)
        # Find the lines of the table whose keys do not belong to postroom.
        body = text[start:stop]
        assert isinstance(edit.value, Mapping)  # noqa: S101 - our own table of clients
        ours = edit.foreign | edit.value.keys()
        theirs = "".join(
            line
            for line in body.splitlines(keepends=True)
            if not ((key := _ASSIGNED.match(line)) and key[1] in ours)
        )
        result = text[:start] + lines + theirs + text[stop:]
        applied = AppliedEdit(client=client, kind="replaced", path=path, was=text[start:stop])
    _require_same(result, text, path)
    if not fits(find(result, path), edit):
        raise NotToml(f"[{'.'.join(path)}] has a form that setup cannot edit; remove the table by hand")
    return result, [applied]


def take(text: str, applied: AppliedEdit) -> tuple[str, bool]:
    """Remove a recorded table from a TOML text, and return the text and False.

    Raises:
        NotToml: The text cannot be read, or contains the table in another form.
    """
    if find(text, applied.path) is None:
        return text, False
    if applied.kind == "replaced":
        start, stop = _body(text, applied.path)
        result = text[:start] + applied.was + text[stop:]
    else:
        result = text
        while header := _header(applied.path, inner=True).search(lines := _without_long_texts(result)):
            start = header.start() + result[header.start() :].startswith("\ufeff")
            stop = _end(lines, header.end())
            if applied.before and result[:start].endswith(applied.before):
                start -= len(applied.before)
            before, rest = result[:start], result[stop:]
            joined = before.endswith(("\n", "\ufeff")) or not before or rest[:1] in ("", "\r", "\n")
            result = before + ("" if joined else _line_end(result)) + rest
        if find(result, applied.path) is not None:
            raise NotToml(
                f"[{'.'.join(applied.path)}] does not have the form that setup writes; remove the table "
                "by hand"
            )
    _require_same(result, text, applied.path)
    return result, False


def find(text: str, path: tuple[str, ...]) -> object:
    """Return the value at a path of keys, or None if the path has no value.

    Raises:
        NotToml: The text cannot be read, or a value on the path is not a table.
    """
    result: object = _read(text)
    for depth, key in enumerate(path):
        if not isinstance(result, Mapping):
            raise NotToml(f"`{'.'.join(path[:depth])}` is not a table")
        result = result.get(key)
        if result is None:
            return None
    return result


def _read(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:  # not TOML, or a number with more digits than Python parses
        raise NotToml(str(error)) from error


def _lines(value: object, end: str) -> str:
    assert isinstance(value, Mapping)  # noqa: S101 - our own table of clients
    return "".join(f"{key} = {json.dumps(item, ensure_ascii=False)}{end}" for key, item in value.items())


def _line_end(text: str) -> str:
    first = text.find("\n")
    return "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"


def _header(path: tuple[str, ...], *, inner: bool) -> re.Pattern[str]:
    names = r"[ \t]*\.[ \t]*".join(rf"""["']?{re.escape(name)}["']?""" for name in path)
    rest = r"(?:[ \t]*\.[^\]\r\n]*)?" if inner else ""
    return re.compile(rf"^[ \t]*\[[ \t]*{names}{rest}[ \t]*\][ \t]*(?:#[^\r\n]*)?(?:\r?\n|\Z)", re.MULTILINE)


def _body(text: str, path: tuple[str, ...]) -> tuple[int, int]:
    lines = _without_long_texts(text)
    header = _header(path, inner=False).search(lines)
    if header is None:
        raise NotToml(
            f"[{'.'.join(path)}] does not have the form that setup writes; remove the table by hand"
        )
    return header.end(), _end(lines, header.end())


def _without_long_texts(text: str) -> str:
    text = text.replace("\ufeff", " ", 1) if text.startswith("\ufeff") else text
    return _TOKEN.sub(
        lambda found: re.sub(r"[^\r\n]", "x", found[0]) if found[0][:3] in ('"""', "'''") else found[0], text
    )


def _end(text: str, start: int) -> int:
    following = _HEADER.search(text, start)
    stop = start
    for line in re.finditer(r"[^\n]*(?:\n|\Z)", text[start : following.start() if following else len(text)]):
        if line[0].strip() and not line[0].lstrip().startswith("#"):
            stop = start + line.end()
    return stop


def _require_same(after: str, before: str, path: tuple[str, ...]) -> None:
    """Raise an error if a change affects more than the table at `path`.

    Raises:
        NotToml: The result has other changes, or cannot be read.
    """
    if _apart_from(_read(after), path) != _apart_from(_read(before), path):
        raise NotToml(
            f"setup cannot edit [{'.'.join(path)}] without its surroundings; edit the table by hand"
        )


def _apart_from(document: dict[str, object], path: tuple[str, ...]) -> object:
    by_key = {key: value for key, value in document.items() if key != path[0]}
    inner = document.get(path[0])
    if len(path) > 1 and isinstance(inner, dict) and (left := _apart_from(inner, path[1:])):
        by_key[path[0]] = left
    elif len(path) > 1 and inner is not None and not isinstance(inner, dict):
        by_key[path[0]] = inner
    return by_key

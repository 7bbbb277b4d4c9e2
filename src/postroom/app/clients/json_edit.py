"""Edits JSON with comments in place, and undoes the edits. No other byte changes.

Each step adds a part, and returns a record with which the step can be undone. Undoing all steps in reverse
order restores the original text. If people have changed other parts in between, only postroom's part is
removed.
"""

import json
import re
from dataclasses import replace
from typing import Final

from postroom.app.clients.config_edits import AppliedEdit, ConfigEdit, bears, fits, mended
from postroom.jsonc import Node, NotJson, read

_INDENT: Final = "  "
_BLANKS: Final = " \t\r\n"
_COMMENT: Final = re.compile(r"//[^\r\n]*|/\*.*?\*/", re.DOTALL)
_OPENED: Final = re.compile(r"^([ \t]*)[^\r\n]*[{\[][ \t]*\r?\n([ \t]+)[^\s]", re.MULTILINE)


def put(text: str, edit: ConfigEdit, client: str) -> tuple[str, list[AppliedEdit]]:
    """Insert the value of an edit into a JSON text, and return the text and a record of each inserted part.

    Raises:
        NotJson: The text cannot be parsed, or contains a value of another type at the place of the edit.
    """
    applied_edits = list[AppliedEdit]()
    if read(text) is None:
        end = _line_end(text)
        before = "" if text.lstrip("\ufeff") == "" or text.endswith("\n") else end
        applied_edits.append(AppliedEdit(client=client, kind="root", path=(), before=before, after=end))
        text = f"{text}{before}{{}}{end}"
    for depth in range(1, len(edit.path) + 1):
        path = edit.path[:depth]
        empty = "[]" if depth == len(edit.path) and not edit.key else "{}"
        if find(text, path) is None:
            text, applied = _insert(text, path[:-1], f"{json.dumps(path[-1])}: {empty}")
            applied_edits.append(replace(applied, client=client, kind="container", path=path))
    text, last = _put_last(text, edit)
    if last is not None:
        applied_edits.append(replace(last, client=client, sign=edit.sign, goes_with=edit.goes_with))
    return text, applied_edits


def take(text: str, applied: AppliedEdit) -> tuple[str, bool]:
    """Remove a recorded part from a JSON text, and return the text and whether a piece of the part is left.

    Raises:
        NotJson: The text cannot be read.
    """
    if applied.goes_with and find(text, applied.goes_with) is not None:
        return text, True
    if applied.kind == "root":
        root = read(text)
        if root is None:
            return text, False
        if not root.is_bare:
            return text, True
        start = (
            root.start - len(applied.before) if text[: root.start].endswith(applied.before) else root.start
        )
        end = root.end + len(applied.after) if text.startswith(applied.after, root.end) else root.end
        return text[:start] + text[end:], False
    if applied.kind == "item":
        return _without_items(text, applied), False
    if applied.sign:
        node = next(iter(items(text, applied.path, applied.sign)), None)
    else:
        node = find(text, applied.path)
    if node is None:
        return text, False
    if applied.kind == "replaced":
        return text[: node.start] + applied.was + text[node.end :], False
    if applied.kind == "container" and not node.is_bare:
        return text, True
    key = applied.path[-1]
    holder = find(text, applied.path[:-1])
    assert holder is not None  # noqa: S101 - its child was found
    index = max(i for i, child in enumerate(holder.children) if child.key == key)
    return _cut_child(text, holder, index, applied), False


def find(text: str, path: tuple[str, ...]) -> Node | None:
    """Return the value at a path of keys, or None if the path does not exist.

    Raises:
        NotJson: The text cannot be read, or a value on the path is not an object.
    """
    node = read(text)
    for depth, key in enumerate(path):
        if node is None:
            return None
        _require(node, "object", path[:depth])
        child = node.child(key)
        node = None if child is None else child.node
    return node


def items(text: str, path: tuple[str, ...], sign: str) -> list[Node]:
    """Return the items of an array that contain the text `sign`.

    Raises:
        NotJson: The text cannot be read, or there is no array at the path.
    """
    array = find(text, path)
    if array is None:
        return []
    _require(array, "array", path)
    return [child.node for child in array.children if bears(child.node.value(), sign)]


def _require(node: Node, kind: str, path: tuple[str, ...]) -> None:
    if node.kind != kind:
        what = f"`{'.'.join(path)}`" if path else "the document"
        raise NotJson(f"{what} is not a {kind}")


def _put_last(text: str, edit: ConfigEdit) -> tuple[str, AppliedEdit | None]:
    if edit.key:
        path = (*edit.path, edit.key)
        node = find(text, path)
        if node is None:
            text, applied = _insert(text, edit.path, json.dumps(edit.key) + ": ", edit.value)
            return text, replace(applied, kind="entry", path=path)
    else:
        path = edit.path
        node = next(iter(items(text, path, edit.sign)), None)
        if node is None:
            text, applied = _insert(text, path, "", edit.value)
            return text, replace(applied, kind="item", path=path)
    present = node.value()
    if fits(present, edit):
        return text, None
    was = text[node.start : node.end]
    value = mended(present, edit)
    in_lines = _begins_line(text, node.start)
    shown = _render(value, text, _indent_of_line(text, node.start), in_lines=in_lines)
    applied = AppliedEdit(client="", kind="replaced", path=path, was=was)
    return text[: node.start] + shown + text[node.end :], applied


def _insert(text: str, path: tuple[str, ...], name: str, value: object = None) -> tuple[str, AppliedEdit]:
    holder = find(text, path)
    if holder is None:
        raise NotJson(f"`{'.'.join(path)}` does not exist")
    if value is not None and not name:
        _require(holder, "array", path)
    else:
        _require(holder, "object", path)
    before, after = _blanks(text, holder)
    indent = before.rpartition("\n")[2]
    in_lines = "\n" in before
    shown = name if value is None else name + _render(value, text, indent, in_lines=in_lines)
    last = holder.children[-1] if holder.children else None
    trailing = "," if last is not None and last.comma is not None else ""
    text = text[: holder.tail] + before + shown + trailing + after + text[holder.tail :]
    if last is not None and last.comma is None:
        text = text[: last.end] + "," + text[last.end :]
    return text, AppliedEdit(client="", kind="entry", path=path, before=before, after=after)


def _blanks(text: str, holder: Node) -> tuple[str, str]:
    end = _line_end(text)
    outer = _indent_of_line(text, holder.start)
    if not holder.children:
        closes_alone = "\n" in text[holder.tail : holder.end - 1]
        is_first = not text[: holder.start].strip(_BLANKS + "\ufeff")
        if holder.is_bare and not (closes_alone or is_first or _begins_line(text, holder.start)):
            return "", ""  # the whole object is on one line
        return end + outer + _unit(text), "" if closes_alone else end + outer
    last = holder.children[-1]
    if _begins_line(text, last.start):
        return end + _indent_of_line(text, last.start), ""
    behind = last.end if last.comma is None else last.comma + 1
    if text[behind : holder.tail].strip(_BLANKS):  # a line comment here would contain the new text
        return end + outer + _unit(text), ""
    return " ", ""


def _render(value: object, text: str, indent: str, *, in_lines: bool) -> str:
    if not in_lines:
        return _dump(value, None)
    lines = _dump(value, _unit(text)).split("\n")
    return f"{_line_end(text)}{indent}".join(lines)


def _dump(value: object, indent: str | None) -> str:
    shown = json.dumps(value, ensure_ascii=False, indent=indent)
    halves = any("\ud800" <= value <= "\udfff" for value in shown)
    return json.dumps(value, indent=indent) if halves else shown


def _begins_line(text: str, at: int) -> bool:
    line = text[:at].rpartition("\n")
    # Find the part of a line before the value of a member, without the name of the member.
    return bool(line[1]) and not re.sub(r'"(?:[^"\\]|\\.)*"\s*:\s*$', "", line[2]).strip(" \t")


def _indent_of_line(text: str, at: int) -> str:
    line = text[:at].rpartition("\n")[2].lstrip("\ufeff")
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    """Return the indentation that the document uses for one level."""
    for match in _OPENED.finditer(text):
        if len(match[2]) > len(match[1]) and match[2].startswith(match[1]):
            return match[2][len(match[1]) :]
    return _INDENT


def _line_end(text: str) -> str:
    first = text.find("\n")
    return "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"


def _without_items(text: str, applied: AppliedEdit) -> str:
    while items(text, applied.path, applied.sign):
        array = find(text, applied.path)
        index = next(i for i, item in enumerate(array.children) if bears(item.node.value(), applied.sign))  # type: ignore[union-attr]  # it has items
        for child in array.children[index].node.children:  # type: ignore[union-attr]  # as above
            if child.node.kind != "array":
                continue
            its = child.node.children
            ours = [place for place, item in enumerate(its) if bears(item.node.value(), applied.sign)]
            if ours and len(ours) < len(its):
                text = _cut_child(text, child.node, ours[0], replace(applied, before="", after=""))
                break
        else:
            text = _cut_child(text, array, index, applied)  # type: ignore[arg-type]  # as above
    return text


def _cut_child(text: str, holder: Node, index: int, applied: AppliedEdit) -> str:
    child = holder.children[index]
    is_last = index == len(holder.children) - 1
    is_alone = len(holder.children) == 1
    start = holder.start + len(text[holder.start : child.start].rstrip(_BLANKS))
    was_rewritten = text[start : child.start] != applied.before
    behind = child.end if child.comma is None else child.comma + 1
    if not text[behind:].lstrip(" \t").startswith(("\n", "\r")):
        # If a line comment ends before the child, the rest of the line must not become part of the comment.
        earlier = [item for item in holder.children if item.start < child.start]
        last = holder.start + 1 if not earlier else (earlier[-1].comma or earlier[-1].end) + 1
        comments = [match for match in _COMMENT.finditer(text, last, start) if match[0].startswith("//")]
        if comments and comments[-1].end() == start:
            start = child.start
    end = child.end
    pieces = []
    if child.comma is not None:
        if text[end : child.comma].strip(_BLANKS):
            pieces.append((child.comma, child.comma + 1))
        else:
            end = child.comma + 1
    if is_alone and applied.after and text.startswith(applied.after, end):
        end += len(applied.after)
    elif is_alone and was_rewritten and not text[end : holder.end - 1].strip(_BLANKS):
        end = holder.end - 1
    pieces.append((start, end))
    if is_last and not is_alone and child.comma is None:
        comma = holder.children[index - 1].comma
        pieces.append((comma, comma + 1) if comma is not None else (start, start))
    for begin, stop in sorted(pieces, reverse=True):
        text = text[:begin] + text[stop:]
    return text

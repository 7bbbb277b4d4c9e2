"""Parses JSON as clients write it, with comments, trailing commas or a byte order mark.

The parser provides the positions of all values, so that an edit can change one part of the text and leave the
rest unchanged. The standard library parses plain JSON. Positions are computed only on request, because an
edit needs only a few of them.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final, Literal

DEEPEST: Final = 200
"""Maximum number of nested levels, because the parser recurses for each level; no client's file has more."""
_BLANK: Final = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_BEGINS_BLANK: Final = frozenset(" \t\r\n/")
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_PLAIN: Final = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.+-])")
_BYTE_ORDER: Final = "\ufeff"
JsonForm = Literal["plain", "comments", "lenient"]
"""Plain JSON; JSON with comments; or JSON with comments and trailing commas."""


def _refuse_constant(word: str) -> object:
    raise ValueError(f"{word} is not JSON")


_PLAIN_JSON: Final = json.JSONDecoder(parse_constant=_refuse_constant)


class NotJson(ValueError):
    """A text is not JSON, even with comments and trailing commas; the message names the line."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A JSON value and its position in the text."""

    kind: Literal["object", "array", "plain"]
    start: int
    end: int
    inside: "tuple[tuple[Child, ...], int] | None" = None
    """The parsed content of the brackets, which `children` and `tail` return, or None before it is parsed."""
    plain: object = None
    """The Python value, if the value has no brackets or was not parsed in detail."""
    source: str = field(default="", repr=False)
    depth: int = 0

    @property
    def children(self) -> "tuple[Child, ...]":
        """The members of the object, or the items of the array."""
        return self._looked_into[0]

    @property
    def tail(self) -> int:
        """The position at which the last child or comment within the brackets ends."""
        return self._looked_into[1]

    @cached_property
    def _looked_into(self) -> "tuple[tuple[Child, ...], int]":
        if self.kind == "plain":
            return (), 0
        return self.inside or _Reader(self.source, self.start).inside(self.depth)

    def value(self) -> object:
        """Return the value as a Python object; the last of several members with the same key is used."""
        if self.inside is None:
            return self.plain
        if self.kind == "object":
            return {child.key: child.node.value() for child in self.children}
        if self.kind == "array":
            return [child.node.value() for child in self.children]
        return self.plain

    def child(self, key: str) -> "Child | None":
        """Return the last member with this key, or None."""
        return next((child for child in reversed(self.children) if child.key == key), None)

    @property
    def is_bare(self) -> bool:
        """Whether the brackets contain neither children nor comments."""
        return not self.children and self.tail == self.start + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A member of an object, or an item of an array.

    The key of an item is "".
    """

    key: str
    start: int
    node: Node
    comma: int | None
    """The position of the comma after the child, or None if there is none."""

    @property
    def end(self) -> int:
        """The position at which the value of the child ends, before the comma."""
        return self.node.end


# Cached, because one change parses a text repeatedly, and some texts have millions of characters.
@lru_cache(maxsize=2)
def read(text: str) -> Node | None:
    """Return the JSON document in a text, or None if the text has only whitespace and comments.

    Raises:
        NotJson: The text is not JSON, even with comments and trailing commas.
    """
    reader = _Reader(text, 1 if text.startswith(_BYTE_ORDER) else 0)
    reader.skip()
    if reader.at == len(text):
        return None
    node = reader.value(0)
    reader.skip()
    if reader.at != len(text):
        raise reader.wrong("there is text after the document")
    return node


def require_form(text: str, form: JsonForm, reader: str) -> None:
    """Check that a text has the form of JSON that the program `reader` supports.

    Raises:
        NotJson: The text has a comment or a trailing comma, or is not JSON at all.
    """
    if form == "lenient" or (root := read(text)) is None:
        return
    at: int | None = None
    if form == "plain":
        value = "a comment, or a comma before a closing bracket"
        try:
            json.loads(text.removeprefix(_BYTE_ORDER))
        except json.JSONDecodeError as error:
            at = error.pos
    else:
        value = "a comma before a closing bracket"
        commas = [node.children[-1].comma for node in nodes(root) if node.children]
        at = min((comma for comma in commas if comma is not None), default=None)
    if at is not None:
        line = text.count("\n", 0, at) + 1
        raise NotJson(
            f"line {line}: found {value}; {reader} expects JSON without these, and ignores or "
            "rejects such a file"
        )


def nodes(node: Node) -> Iterator[Node]:
    """Yield a JSON value and all values within the value."""
    yield node
    for child in node.children:
        yield from nodes(child.node)


class _Reader:
    def __init__(self, text: str, at: int) -> None:
        self._text = text
        self.at = at

    def wrong(self, what: str) -> NotJson:
        line = self._text.count("\n", 0, self.at) + 1
        return NotJson(f"line {line}: {what}")

    def skip(self) -> None:
        """Skip whitespace and comments."""
        if self._text[self.at : self.at + 1] not in _BEGINS_BLANK:  # the usual case
            return
        match = _BLANK.match(self._text, self.at)
        self.at = match.end() if match else self.at

    def value(self, depth: int) -> Node:
        first = self._text[self.at : self.at + 1]
        if first in ("{", "["):
            if depth == DEEPEST:
                raise self.wrong(f"more than {DEEPEST} levels of nesting")
            return self._container(first, depth)
        start = self.at
        if first == '"':
            return Node(kind="plain", start=start, plain=self._string(), end=self.at)
        match = _PLAIN.match(self._text, self.at)
        if match is None:
            raise self.wrong(f"a value is missing or invalid: {self._text[start : start + 20]!r}")
        try:
            plain = json.loads(match[0])
        except ValueError as error:  # Python does not parse integers with thousands of digits
            raise self.wrong(f"a number has {len(match[0])} digits, which is too many") from error
        self.at = match.end()
        return Node(kind="plain", start=start, end=self.at, plain=plain)

    def _string(self) -> str:
        match = _STRING.match(self._text, self.at)
        if match is None:
            raise self.wrong("a quoted text is missing or has no end")
        if "\\" not in match[0]:
            self.at = match.end()
            return match[0][1:-1]
        try:
            word = str(json.loads(match[0]))
        except ValueError as error:
            raise self.wrong("a quoted text has an escape that JSON does not allow") from error
        self.at = match.end()
        return word

    def _container(self, opening: str, depth: int) -> Node:
        start = self.at
        kind: Literal["object", "array"] = "object" if opening == "{" else "array"
        try:
            plain, self.at = _PLAIN_JSON.raw_decode(self._text, start)
            if _levels(plain) <= DEEPEST - depth:
                return Node(kind=kind, start=start, end=self.at, plain=plain, source=self._text, depth=depth)
        except (ValueError, RecursionError):
            pass  # the text has comments, or is invalid
        self.at = start
        inside = self.inside(depth)
        return Node(kind=kind, start=start, end=self.at, inside=inside)

    def inside(self, depth: int) -> tuple[tuple[Child, ...], int]:
        """Return the content of brackets, and the position at which the last part of the content ends."""
        opening = self._text[self.at]
        closing = "}" if opening == "{" else "]"
        self.at += 1
        children: list[Child] = []
        tail = self.at
        while True:
            begin = self.at
            self.skip()
            if passed := self._text[begin : self.at].rstrip(" \t\r\n"):
                tail = begin + len(passed)  # the end of the last comment
            if self._text.startswith(closing, self.at):
                break
            if children and children[-1].comma is None:
                raise self.wrong(f"a comma or {closing} is missing")
            children.append(self._child(opening, depth))
            tail = self.at
        self.at += 1
        return tuple(children), tail

    def _child(self, opening: str, depth: int) -> Child:
        start, key = self.at, ""
        if opening == "{":
            key = self._string()
            self.skip()
            if not self._text.startswith(":", self.at):
                raise self.wrong(f"a colon is missing after {key!r}")
            self.at += 1
            self.skip()
        node = self.value(depth + 1)
        self.skip()
        comma = self.at if self._text.startswith(",", self.at) else None
        self.at = node.end if comma is None else comma + 1
        return Child(key=key, start=start, node=node, comma=comma)


def _levels(value: object) -> int:
    """Return the number of nested levels of a value."""
    level, count = [value], 0
    while level := [item for item in level if isinstance(item, dict | list)]:
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
        count += 1
    return count

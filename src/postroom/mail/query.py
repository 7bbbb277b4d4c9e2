"""Parses search queries. Text that is not an operator is taken literally.

    query   := any ("OR" any)*          any  := all ("AND"? all)* ("NOT" all)*
    all     := "(" query ")" | field ":" atom | atom
    atom    := "a phrase" | word | word*

Parsing never fails: an unclosed quote extends to the end of the text, an operator without operands is a word,
and an unknown field name is part of its word.
"""

import re
import unicodedata
from dataclasses import replace

from postroom.contracts.mail import SEARCH_FIELDS, All, AnyOf, Not, Phrase, Query, Term

_TOKEN = re.compile(
    r'\s*(?:(?P<open>\()|(?P<close>\))|(?P<field>[A-Za-z]+):(?=[^\s)])|"(?P<phrase>[^"]*)"?|(?P<word>[^\s()"]+))'
)
_ALIASES = {
    "from": "sender",
    "body_md": "body",
    "sender_name": "sender",
    **{name: name for name in SEARCH_FIELDS},
}

MAX_PARTS = 64
MAX_DEPTH = 8
"""Maximum nesting of parentheses. Each adds up to three levels, and a search index supports about 30."""


def parse_query(text: str) -> Query | None:
    """Parse a search query; return None for a text without words."""
    results: list[tuple[str, str]] = []
    position = 0
    while len(results) < MAX_PARTS and (match := _TOKEN.match(text, position)):
        kind = match.lastgroup or "word"
        value = match[kind]
        if kind == "field" and value.casefold() not in _ALIASES:
            position = match.start("field")
            rest = re.compile(r'[^\s()"]+').match(text, position)
            kind, value = "word", rest[0] if rest else ""
            position += len(value)
        else:
            position = match.end()
        results.append((kind, value))
    return _Reader(results).query()


def _is_indexed(text: str) -> bool:
    """Return whether the index stores any part of a text."""
    return any(
        character.isalnum() or (not character.isascii() and unicodedata.category(character)[0] == "S")
        for character in text
    )


class _Reader:
    """A recursive-descent parser for the tokens of a search query."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0

    def query(self) -> Query | None:
        parts = []
        while self._at < len(self._tokens):
            if part := self._any(0):
                parts.append(part)
            if self._peek() == ("close", ")"):
                self._at += 1
        return _join_parts(parts)

    def _peek(self) -> tuple[str, str] | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _operator(self, word: str) -> bool:
        """Consume the next token if it is the operator `word` and has an operand."""
        if self._peek() != ("word", word) or self._at + 1 >= len(self._tokens):
            return False
        if self._tokens[self._at + 1][0] == "close":
            return False
        self._at += 1
        return True

    def _any(self, depth: int) -> Query | None:
        parts = [self._all(depth)]
        while self._operator("OR"):
            parts.append(self._all(depth))
        known_parts = tuple(part for part in parts if part is not None)
        if not known_parts:
            return None
        return known_parts[0] if len(known_parts) == 1 else AnyOf(known_parts)

    def _all(self, depth: int) -> Query | None:
        parts: list[Query] = []
        without: list[Query] = []
        while (token := self._peek()) is not None and token[0] != "close":
            if token == ("word", "OR") and parts and self._at + 1 < len(self._tokens):
                break
            if parts and self._operator("NOT"):
                if part := self._one(depth):
                    without.append(part)
                continue
            if parts:
                self._operator("AND")
            if part := self._one(depth):
                parts.append(part)
        result = _join_parts(parts)
        if result is None or not without:
            return result
        return Not(result, without[0] if len(without) == 1 else AnyOf(tuple(without)))

    def _one(self, depth: int) -> Query | None:
        token = self._peek()
        if token is None or token[0] == "close":
            return None
        self._at += 1
        kind, value = token
        if kind == "open":
            if depth >= MAX_DEPTH:
                return None
            inside = self._any(depth + 1)
            if self._peek() == ("close", ")"):
                self._at += 1
            return inside
        if kind == "field":
            return _in_field(self._one(depth), _ALIASES[value.casefold()])
        if kind == "phrase":
            words = tuple(word for word in value.split() if _is_indexed(word))
            return Phrase(words) if words else None
        word = value.rstrip("*")
        return Term(word, prefix=value.endswith("*")) if _is_indexed(word) else None


def _in_field(query: Query | None, field: str) -> Query | None:
    match query:
        case None:
            return None
        case Term() | Phrase():
            return replace(query, field=query.field or field)
        case Not(left=left, right=right):
            return Not(_in_field(left, field) or left, _in_field(right, field) or right)
        case All(parts=parts):
            return All(tuple(_in_field(part, field) or part for part in parts))
        case AnyOf(parts=parts):
            return AnyOf(tuple(_in_field(part, field) or part for part in parts))


def _join_parts(parts: list[Query]) -> Query | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else All(tuple(parts))

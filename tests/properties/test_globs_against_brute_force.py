"""Overlap against two readings of the patterns that share no code with it.

`expression` turns a pattern's text into one regular expression for whole paths; every short path is tried with it.
`Automaton` turns the text into states and edges; the product of two is searched for a common path of any length.
"""

import re
from collections import deque
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.contracts.errors import InvalidPattern
from postroom.mail.globs import Pattern, matches, overlap, overlapping, parse_pattern, prefixes_of

PART = re.compile(r"\[[!^]?\]?[^\]]*\]|.")


def is_literal(text: str) -> bool:
    return not re.search(r"[*?\[]", text)


def expression(text: str) -> str:
    """A regular expression for the paths that a pattern of these tests' grammar covers."""
    if is_literal(text):
        return re.escape(text) + "(/.+)?"
    names = text.split("/")
    written = ""
    for position, name in enumerate(names):
        is_last = position == len(names) - 1
        if name == "**":
            written += ".+" if is_last else "([^/]+/)*"
            continue
        for part in PART.findall(name):
            if part[0] == "[":
                written += "(?!/)" + part.replace("[!", "[^")
            else:
                written += {"*": "[^/]*", "?": "[^/]"}.get(part, re.escape(part))
        written += "" if is_last else "/"
    return written


@cache
def paths(alphabet: str, longest: int) -> tuple[str, ...]:
    """Every path over the alphabet up to a length; no name in it is empty."""
    found, grown = [], [""]
    for _ in range(longest):
        grown = [path + one for path in grown for one in alphabet if one != "/" or path[-1:] not in ("", "/")]
        found += [path for path in grown if path[-1] != "/"]
    return tuple(found)


@cache
def covered(text: str, alphabet: str, longest: int, *, ignores_case: bool = False) -> frozenset[str]:
    """The short paths that a pattern covers."""
    fits = re.compile(expression(text), re.IGNORECASE if ignores_case else 0).fullmatch
    return frozenset(path for path in paths(alphabet, longest) if fits(path))


class Automaton:
    """States and edges of one pattern over a small alphabet; an edge without letters is free."""

    def __init__(self, text: str, alphabet: str) -> None:
        self.letters = frozenset(alphabet) - {"/"}
        self.edges: list[list[tuple[frozenset[str], int]]] = [[]]
        at = 0
        *leading, last = text.split("/")
        for name in leading:
            at = self.any_names(at) if name == "**" else self.add(self.name(at, name), frozenset("/"))
        at = self.some_names(at) if last == "**" else self.name(at, last)
        self.ends = {at}
        if is_literal(text):
            self.ends.add(self.some_names(self.add(at, frozenset("/"))))

    def add(self, source: int, letters: frozenset[str]) -> int:
        self.edges.append([])
        self.edges[source].append((letters, len(self.edges) - 1))
        return len(self.edges) - 1

    def name(self, at: int, name: str) -> int:
        for part in PART.findall(name):
            if part == "*":
                at = self.add(at, frozenset())
                self.edges[at].append((self.letters, at))
            elif part == "?" or part[0] == "[":
                one = re.compile(part.replace("[!", "[^").replace("?", "."))
                at = self.add(at, frozenset(letter for letter in self.letters if one.fullmatch(letter)))
            else:
                at = self.add(at, frozenset(part))
        return at

    def some_names(self, at: int) -> int:
        inside = self.add(at, self.letters)
        self.edges[inside].append((self.letters, inside))
        between = self.add(inside, frozenset("/"))
        self.edges[between].append((self.letters, inside))
        return inside

    def any_names(self, at: int) -> int:
        after = self.add(self.some_names(at), frozenset("/"))
        self.edges[at].append((frozenset(), after))
        return after


def common_path(a: str, b: str, alphabet: str) -> str | None:
    """A path that both cover, found in the product of their automata; None when there is none."""
    one, other = Automaton(a, alphabet), Automaton(b, alphabet)
    seen, queue = {(0, 0)}, deque([(0, 0, "")])
    while queue:
        x, y, path = queue.popleft()
        # A free edge out of the start may reach an end only for `*`, and a path holds at least one letter.
        if x in one.ends and y in other.ends and path and path[-1] != "/":
            return path
        steps = [(target, y, "") for letters, target in one.edges[x] if not letters]
        steps += [(x, target, "") for letters, target in other.edges[y] if not letters]
        for (mine, to), (theirs, onto) in product(one.edges[x], other.edges[y]):
            steps += [(to, onto, letter) for letter in sorted(mine & theirs)[:1]]
        for to, onto, letter in steps:
            if (to, onto) not in seen:
                seen.add((to, onto))
                queue.append((to, onto, path + letter))
    return None


def is_common(path: str | None, a: str, b: str) -> bool:
    return path is not None and all(re.fullmatch(expression(text), path) for text in (a, b))

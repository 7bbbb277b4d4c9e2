"""Finds in an excerpt the words that a search asked for. Answers with pieces of text, never with HTML."""

import re
import unicodedata
from dataclasses import dataclass, field

from postroom.contracts.mail import All, AnyOf, Not, Phrase, Query, Term

_WORD = re.compile(r"[^\W_]+")


@dataclass(slots=True)
class Wanted:
    """The words and beginnings of words that a query asks for, folded as the index folds them."""

    words: set[str] = field(default_factory=set)
    beginnings: tuple[str, ...] = ()

    def has(self, word: str) -> bool:
        """Whether the query asks for this word."""
        folded = _folded(word)
        return folded in self.words or folded.startswith(self.beginnings)


def wanted(query: Query) -> Wanted:
    """Return what a query asks for, without what it excludes."""
    found = Wanted()
    _gather(query, found)
    return found


def pieces(excerpt: str, looked_for: Wanted) -> list[tuple[str, bool]]:
    """Cut an excerpt into pieces, each with whether it is a word that was looked for."""
    cut: list[tuple[str, bool]] = []
    end = 0
    for match in _WORD.finditer(excerpt):
        if looked_for.has(match[0]):
            cut += [(excerpt[end : match.start()], False), (match[0], True)]
            end = match.end()
    cut.append((excerpt[end:], False))
    return [(text, hit) for text, hit in cut if text]


def _gather(query: Query, found: Wanted) -> None:
    match query:
        case Term(text=text, prefix=prefix):
            words = [_folded(word) for word in _WORD.findall(text)]
            if prefix and words:
                found.beginnings += (words.pop(),)
            found.words.update(words)
        case Phrase(words=words):
            found.words.update(_folded(word) for text in words for word in _WORD.findall(text))
        case Not(left=left):
            _gather(left, found)
        case All(parts=parts) | AnyOf(parts=parts):
            for part in parts:
                _gather(part, found)


def _folded(word: str) -> str:
    characters = unicodedata.normalize("NFKD", word)
    return "".join(character for character in characters if not unicodedata.combining(character)).casefold()

"""Finds the words of a query in the texts of a message."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from postroom.contracts.errors import InvalidArgument
from postroom.contracts.mail import SEARCH_FIELDS, All, AnyOf, Message, Not, Phrase, Query, SearchHit, Term
from postroom.stores.memory.words import Word, words

MAX_DEPTH = 30
SNIPPET_WORDS = 16
_BEFORE_THE_PLACE = 4

Texts = Mapping[str, Sequence[Word]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a term or phrase begins: the field and the number of its first word."""

    field: str
    word: int


def hit(message: Message, query: Query) -> SearchHit | None:
    """Return the message as a search shows it, or None when the query does not find it.

    Raises:
        InvalidArgument: the query nests deeper than `MAX_DEPTH`.
    """
    given = {
        "subject": message.subject,
        "body": message.body_md,
        "sender": message.sender_name,
        "topic": message.topic,
    }
    texts = {field: words(text) for field, text in given.items()}
    places = _places(query, texts, depth=0)
    if not places:
        return None
    first = places[0]
    snippet = _snippet(given[first.field], texts[first.field], first.word)
    return SearchHit(message=message, snippet=snippet, rank=-float(len(places)))


def _places(query: Query, texts: Texts, *, depth: int) -> list[Place]:
    """Return where a query is found; every match has a place, so that an empty list means none."""
    if depth > MAX_DEPTH:
        raise InvalidArgument(f"a search nests at most {MAX_DEPTH} deep", value=MAX_DEPTH)
    match query:
        case Term(text=text, prefix=prefix, field=field):
            return _phrase_places(text, texts, field=field, prefix=prefix)
        case Phrase(words=given, field=field):
            return _phrase_places(" ".join(given), texts, field=field, prefix=False)
        case Not(left=left, right=right):
            unwanted = _places(right, texts, depth=depth + 1)
            found = _places(left, texts, depth=depth + 1)
            return [] if unwanted else found
        case All(parts=parts):
            each = [_places(part, texts, depth=depth + 1) for part in parts]
            return [place for places in each for place in places] if all(each) else []
        case AnyOf(parts=parts):
            return [place for part in parts for place in _places(part, texts, depth=depth + 1)]


def _phrase_places(text: str, texts: Texts, *, field: str | None, prefix: bool) -> list[Place]:
    wanted = [word.folded for word in words(text)]
    if not wanted:
        return []
    return [
        Place(name, start)
        for name in ([field] if field else SEARCH_FIELDS)
        for start in range(len(texts[name]) - len(wanted) + 1)
        if _stands(wanted, texts[name][start : start + len(wanted)], prefix=prefix)
    ]


def _stands(wanted: list[str], found: Sequence[Word], *, prefix: bool) -> bool:
    *whole, last = (word.folded for word in found)
    return whole == wanted[:-1] and (last.startswith(wanted[-1]) if prefix else last == wanted[-1])


def _snippet(text: str, found: Sequence[Word], at: int) -> str:
    first = max(0, at - _BEFORE_THE_PLACE)
    last = min(len(found), first + SNIPPET_WORDS) - 1
    head = "" if first == 0 else "…"
    tail = "" if last == len(found) - 1 else "…"
    start = 0 if first == 0 else found[first].start
    end = len(text) if last == len(found) - 1 else found[last].end
    return head + text[start:end] + tail

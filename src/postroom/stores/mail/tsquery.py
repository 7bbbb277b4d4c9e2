"""Renders messages and queries for PostgreSQL's text search, with words split as on SQLite.

The first 16,382 words of a message have a position, each word at most 255 of them; phrases match by position.
Later words are found too, until the index of one message holds a million bytes.
"""

from collections.abc import Mapping
from typing import Final

from postroom.contracts.errors import InvalidArgument
from postroom.contracts.mail import All, AnyOf, Message, Not, Phrase, Query, Term
from postroom.stores.mail.words import asked_words, folded

MAX_DEPTH: Final = 30
_WEIGHTS: Final[Mapping[str, str]] = {"subject": "A", "sender": "B", "topic": "C", "body": "D"}
_LAST_PLACE: Final = 16_383
_MOST_PLACES: Final = 255
_MOST_BYTES: Final = 1_000_000
"""Limit below 2**20 bytes, which is PostgreSQL's maximum."""
_LONGEST_WORD: Final = 500


def home(project_id: int) -> str:
    """Return the hidden word that every message of a project contains, and that no author can write."""
    return f"'#{project_id}'"


def tsvector(message: Message) -> str:
    """Return the index entry of a message, as PostgreSQL reads it."""
    texts = {
        "subject": message.subject,
        "sender": message.sender_name,
        "topic": message.topic,
        "body": message.body_md,
    }
    places: dict[str, list[str]] = {}
    place, size = 1, 0
    for field, text in texts.items():
        weight = _WEIGHTS[field]
        for word in folded(text):  # many times for each message: hence no call more than it needs
            lexeme = word if len(word) <= _LONGEST_WORD else word[:_LONGEST_WORD]
            found = places.get(lexeme)
            if found is None:
                size += len(lexeme.encode()) + 4
                if size > _MOST_BYTES:
                    break
                found = places[lexeme] = []
            if len(found) < _MOST_PLACES:
                size += 2
                found.append(f"{place if place < _LAST_PLACE else _LAST_PLACE}{weight}")
            place += 1
        place += 1  # no phrase goes from one field into the next
    indexed = [f"'{lexeme}':{','.join(found)}" for lexeme, found in places.items()]
    return " ".join((home(message.project_id), *indexed))


def tsquery(query: Query, *, depth: int = 0) -> str | None:
    """Return the expression for a query; None if it can match nothing.

    Raises:
        InvalidArgument: The query is nested deeper than `MAX_DEPTH`.
    """
    if depth > MAX_DEPTH:
        raise InvalidArgument(
            f"a search can be nested at most {MAX_DEPTH} levels deep",
            value=MAX_DEPTH,
            remedy="use fewer parentheses",
        )
    match query:
        case Term(text=text, prefix=prefix, field=field):
            return _in_order(text, field, prefix=prefix)
        case Phrase(words=given, field=field):
            return _in_order(" ".join(given), field, prefix=False)
        case Not(left=left, right=right):
            unwanted = tsquery(right, depth=depth + 1)
            wanted = tsquery(left, depth=depth + 1)
            return f"({wanted} & !{unwanted})" if wanted and unwanted else wanted
        case All(parts=parts):
            each = [tsquery(part, depth=depth + 1) for part in parts]
            found = [part for part in each if part]
            return f"({' & '.join(found)})" if each and len(found) == len(each) else None
        case AnyOf(parts=parts):
            found = [one for part in parts if (one := tsquery(part, depth=depth + 1))]
            return f"({' | '.join(found)})" if found else None


def _in_order(text: str, field: str | None, *, prefix: bool) -> str | None:
    found, is_beginning = asked_words(text)
    lexemes = [f"'{word[:_LONGEST_WORD]}'" for word in found]
    if not lexemes:
        return None
    prefix = prefix or is_beginning
    weight = f":{_WEIGHTS[field]}" if field else ""
    last = f"{weight or ':'}*" if prefix else weight
    return f"({f'{weight} <-> '.join(lexemes)}{last})"

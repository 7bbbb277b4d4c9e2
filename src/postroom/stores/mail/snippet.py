"""The excerpt of a message that a search shows."""

from collections.abc import Iterator
from itertools import islice

from postroom.contracts.mail import All, AnyOf, Message, Not, Phrase, Query, Term
from postroom.stores.mail.words import Word, asked_words, words

_WORDS = 16
_BEFORE_THE_PLACE = 4


def snippet(message: Message, query: Query) -> str:
    """Return some words around the first match of the query."""
    asked = list(asked_of(query))
    texts = (message.body_md, message.subject, message.topic, message.sender_name)
    for text in texts:
        if (found := _around(text, asked)) is not None:
            return found
    return ""


def asked_of(query: Query) -> Iterator[tuple[str, bool]]:
    """Yield each word that a match may contain, and whether it is only the start of a word."""
    match query:
        case Term(text=text, prefix=prefix):
            found, is_beginning = asked_words(text)
            yield from ((word, prefix or is_beginning) for word in found)
        case Phrase(words=given):
            found, is_beginning = asked_words(" ".join(given))
            yield from ((word, is_beginning) for word in found)
        case Not(left=left):
            yield from asked_of(left)
        case All(parts=parts) | AnyOf(parts=parts):
            for part in parts:
                yield from asked_of(part)


def _around(text: str, asked: list[tuple[str, bool]]) -> str | None:
    before: list[Word] = []
    found = words(text)
    for word in found:
        before.append(word)
        if any(word.folded == one or (prefix and word.folded.startswith(one)) for one, prefix in asked):
            shown = before[-_BEFORE_THE_PLACE - 1 :]
            shown += islice(found, _WORDS - len(shown))
            start = 0 if len(shown) < _WORDS and len(before) <= _BEFORE_THE_PLACE else shown[0].start
            is_whole = next(found, None) is None
            end = len(text) if is_whole else shown[-1].end
            return ("…" if start else "") + text[start:end] + ("" if is_whole else "…")
    return None

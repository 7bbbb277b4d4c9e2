"""The search index of messages, and the list of threads by newest message.

Each engine implements the index and the list in its own way.

SQLite has an FTS5 table that does not contain the texts. The writer updates the table after it has returned
results to its callers, with many messages per commit, because an update with each message would double the
size of a commit. PostgreSQL has one `tsvector` per message, made of words that postroom splits itself. The
change that stores a message also writes the `tsvector`, independently of other servers.

A search compares the same words on both engines. A word is a sequence of letters and digits without
differences of case, accents, vowel points and character variants: `Ł`, `ß`, `İ` and `٣` become `l`, `ss`, `i`
and `3`. Two kinds of text become encoded words:

- Text in a script without spaces (Chinese, Japanese, Korean, Thai, Lao, Burmese, Khmer) becomes its pairs of
  neighbouring characters, and its last character. A search finds each part of such text, even next to Latin
  text.
- A symbol such as an emoji is a word.

On PostgreSQL, only the first 16,382 words of a message get positions, and each distinct word gets at most
255. Phrases are matched by position. Later words can also be found, as long as the index entry of the message
has less than a million bytes.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

from msgspec import structs

from postroom.contracts import progress
from postroom.contracts.choices import SearchOrder
from postroom.contracts.errors import InvalidArgument
from postroom.contracts.mail import BEST_AMONG, All, AnyOf, Message, Not, Phrase, Query, SearchHit, Term
from postroom.stores.codec import record
from postroom.stores.mail.check_values import message_of
from postroom.stores.sql_transaction import SqlTransaction

MAX_DEPTH: Final = 30
"""Maximum depth of a query, because FTS5's parser fails at 32 levels of alternating AND and OR."""


MAX_UNSPACED: Final = 16_000
"""Maximum number of characters in scripts without spaces that are indexed in one text.

Each pair of these characters may become a separate word, and other senders wait while words are indexed.
PostgreSQL cannot find phrases after about 16,382 words.
"""
_ASCII_WORD: Final = re.compile(r"[0-9A-Za-z]+")
_CODE: Final = "\uf8f0"
"""The first character of an encoded word, from the private use area."""
_DIGITS: Final = 5
"""The number of hexadecimal digits for each character of an encoded word."""
_CODED_WORD: Final = re.compile(rf"{_CODE}([0-9a-f]{{{_DIGITS}}})")
_UNSPACED: Final = re.compile(
    "[\u0e01-\u0e3a\u0e40-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17d3\u3005-\u3007\u3038-\u303a\u3041-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff]+"
)
_VIRAMA: Final = 9
"""The combining class of the mark that joins two characters; without the mark, the word is a different one.
"""
_SPLITS: Final = "\u200b\u200c\ufeff"
"""Invisible characters that separate words; all others are part of a word."""
_TATWEEL: Final = "\u0640"
_PLAIN: Final = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ħ": "h", "ŧ": "t", "ı": "i", "æ": "ae", "œ": "oe", "þ": "th", "ð": "d"}
)
"""Characters that Unicode does not decompose, each with the character without its stroke."""


class Word(NamedTuple):
    """A normalized word, and its position in the text."""

    folded: str
    start: int
    end: int


def words(text: str) -> Iterator[Word]:
    """Yield the normalized words of a text, in order."""
    if text.isascii():
        for match in _ASCII_WORD.finditer(text):
            yield Word(match[0].lower(), match.start(), match.end())
        return
    end = 0
    for run in _UNSPACED.finditer(text):
        yield from _spaced_words(text, end, run.start())
        # If NFKC changes the length of the text, all words get the position of the text.
        start, end = run.span()
        coded = _coded_run(run[0]).split()
        if len(coded) != end - start:
            yield from (Word(pair, start, end) for pair in coded)
        else:
            yield from (Word(pair, at, min(at + 2, end)) for at, pair in enumerate(coded, start))
    yield from _spaced_words(text, end, len(text))


def folded(text: str) -> Sequence[str]:
    """Return the normalized words of a text, in order."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    # Replace text in scripts without spaces by encoded words, up to the limit.
    left = MAX_UNSPACED

    def code(run: re.Match[str]) -> str:
        nonlocal left
        part = run[0][:left]
        left -= len(part)
        return _coded_run(part) if part else " "

    coded = _UNSPACED.sub(code, text)
    return coded.translate({ord(character): _piece(character) for character in set(coded)}).split()


def is_unspaced(word: str) -> bool:
    """Return whether a word of a query stands for characters in a script without spaces."""
    coded = _CODED_WORD.match(word)
    return coded is not None and _UNSPACED.match(chr(int(coded[1], 16))) is not None


def asked_words(text: str) -> tuple[list[str], bool]:
    """Return the adjacent words to search for, and whether the last word is only a prefix."""
    texts = folded(text)
    if not texts or not texts[-1].startswith(_CODE) or len(texts[-1]) != 1 + _DIGITS:
        return list(texts), False
    if len(texts) > 1 and len(texts[-2]) == 1 + 2 * _DIGITS and texts[-2].endswith(texts[-1][1:]):
        return list(texts[:-1]), False  # a match may continue after this part
    return list(texts), True


def indexed_text(text: str) -> str:
    """Return the words of a text for FTS5, which splits at spaces and ignores the case of ASCII."""
    return text if text.isascii() else " ".join(folded(text))


def _coded_run(run: str) -> str:
    """Return text in a script without spaces as encoded words, each surrounded by spaces."""
    digits = unicodedata.normalize("NFKC", run).encode("utf-32-be").hex()
    codes = [digits[end - _DIGITS : end] for end in range(8, len(digits) + 1, 8)]
    pairs = map(str.__add__, codes, (*codes[1:], ""))
    return f" {_CODE}" + f"  {_CODE}".join(pairs) + " "


def _spaced_words(text: str, begin: int, end: int) -> Iterator[Word]:
    """Yield the words between two positions of a text that has no script without spaces there."""
    word, start = "", begin
    for place in range(begin, end):
        for at, part in enumerate(re.split("( )", _piece(text[place]))):
            if part == " ":
                if word:
                    yield Word(word, start, place + 1 if at else place)
                word = ""
            elif part:
                start = start if word else place
                word += part
    if word:
        yield Word(word, start, end)


@lru_cache(maxsize=4_096)
def _piece(character: str) -> str:
    """Return the characters that a character adds to its word; a space ends the word."""
    if unicodedata.category(character)[0] == "S" and not character.isascii():
        return f" {_CODE}{ord(character):0{_DIGITS}x} "
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    return "".join(map(_part, folded)).translate(_PLAIN)


def _part(character: str) -> str:
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.digit(character))
    if category == "Cf" and character not in _SPLITS:
        return ""
    if category[0] == "M":
        is_accent = unicodedata.combining(character) not in (0, _VIRAMA)
        is_selector = unicodedata.name(character, "").startswith("VARIATION SELECTOR")
        return "" if is_accent or is_selector or category == "Me" else character
    if character == _TATWEEL:
        return ""
    return character if category[0] in "LN" or category == "Co" else " "


_WORDS = 16
_BEFORE_THE_PLACE = 4


def snippet(message: Message, query: Query) -> str:
    """Return a short excerpt of a message around the first match of a query."""
    asked = list(asked_of(query))
    texts = (message.body_md, message.subject, message.topic, message.sender_name)
    for text in texts:
        before: list[Word] = []
        value = words(text)
        for word in value:
            before.append(word)
            if any(
                word.folded == item or (prefix and word.folded.startswith(item)) for item, prefix in asked
            ):
                shown = before[-_BEFORE_THE_PLACE - 1 :]
                shown += islice(value, _WORDS - len(shown))
                start = 0 if len(shown) < _WORDS and len(before) <= _BEFORE_THE_PLACE else shown[0].start
                is_whole = next(value, None) is None
                end = len(text) if is_whole else shown[-1].end
                return ("…" if start else "") + text[start:end] + ("" if is_whole else "…")
    return ""


def asked_of(query: Query) -> Iterator[tuple[str, bool]]:
    """Yield each word that a match may contain, and whether the word is only a prefix."""
    match query:
        case Term(text=text, prefix=prefix):
            texts, is_beginning = asked_words(text)
            yield from ((word, prefix or is_beginning) for word in texts)
        case Phrase(words=given):
            texts, is_beginning = asked_words(" ".join(given))
            yield from ((word, is_beginning) for word in texts)
        case Not(left=left):
            yield from asked_of(left)
        case All(parts=parts) | AnyOf(parts=parts):
            for part in parts:
                yield from asked_of(part)


_COLUMNS = {"subject": "subject", "body": "body_md", "sender": "sender_name", "topic": "topic"}
_NOTHING = '""'


def fts5(query: Query, *, depth: int = 0) -> str:
    """Return the FTS5 expression for a query; words without letters or digits match nothing.

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
            return _in_column(field, _side_by_side(text, prefix=prefix))
        case Phrase(words=words, field=field):
            return _in_column(field, _side_by_side(" ".join(words), prefix=False))
        case Not(left=left, right=right):
            return f"({fts5(left, depth=depth + 1)} NOT {fts5(right, depth=depth + 1)})"
        case All(parts=parts):
            return _join_parts(" AND ", parts, depth)
        case AnyOf(parts=parts):
            return _join_parts(" OR ", parts, depth)


def _join_parts(operator: str, parts: tuple[Query, ...], depth: int) -> str:
    return "(" + (operator.join(fts5(part, depth=depth + 1) for part in parts) or _NOTHING) + ")"


def _side_by_side(text: str, *, prefix: bool) -> str:
    if text.isascii():
        return _quote(text) + (" *" if prefix else "")
    texts, is_beginning = asked_words(text)
    return _quote(" ".join(texts)) + (" *" if texts and (prefix or is_beginning) else "")


def _quote(text: str) -> str:
    # FTS5 reads an expression up to the first NUL; in a text, a NUL only separates words.
    return '"' + text.replace('"', '""').replace("\0", " ") + '"'


def _in_column(field: str | None, expression: str) -> str:
    return f"{{{_COLUMNS[field]}}} : {expression}" if field else expression


_WEIGHTS: Final[Mapping[str, str]] = {"subject": "A", "sender": "B", "topic": "C", "body": "D"}
_LAST_PLACE: Final = 16_383
_MAX_PLACES: Final = 255
_MAX_BYTES: Final = 1_000_000
"""A limit just below 2**20 bytes, the maximum in PostgreSQL."""
_MAX_WORD_LENGTH: Final = 500


def home(project_id: int) -> str:
    """Return the word that the index adds to all messages of a project."""
    # The words of a text never contain `#`, so no author can write this word.
    return f"'#{project_id}'"


def tsvector(message: Message) -> str:
    """Return the index entry of a message in PostgreSQL's text format."""
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
        # this runs often for each message, so it makes as few calls as possible
        for word in folded(text):
            lexeme = word if len(word) <= _MAX_WORD_LENGTH else word[:_MAX_WORD_LENGTH]
            found_place = places.get(lexeme)
            if found_place is None:
                size += len(lexeme.encode()) + 4
                if size > _MAX_BYTES:
                    break
                found_place = places[lexeme] = []
            if len(found_place) < _MAX_PLACES:
                size += 2
                found_place.append(f"{place if place < _LAST_PLACE else _LAST_PLACE}{weight}")
            place += 1
        place += 1  # a phrase must not match across two fields
    indexed = [f"'{lexeme}':{','.join(texts)}" for lexeme, texts in places.items()]
    return " ".join((home(message.project_id), *indexed))


def tsquery(query: Query, *, depth: int = 0) -> str | None:
    """Return the PostgreSQL expression for a query, or None if it cannot match anything.

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
            texts = [part for part in each if part]
            return f"({' & '.join(texts)})" if each and len(texts) == len(each) else None
        case AnyOf(parts=parts):
            texts = [value for part in parts if (value := tsquery(part, depth=depth + 1))]
            return f"({' | '.join(texts)})" if texts else None


def _in_order(text: str, field: str | None, *, prefix: bool) -> str | None:
    texts, is_beginning = asked_words(text)
    lexemes = [f"'{word[:_MAX_WORD_LENGTH]}'" for word in texts]
    if not lexemes:
        return None
    prefix = prefix or is_beginning
    weight = f":{_WEIGHTS[field]}" if field else ""
    last = f"{weight or ':'}*" if prefix else weight
    return f"({f'{weight} <-> '.join(lexemes)}{last})"


_NEWEST: Final = 2**62
_PAGE: Final = 1_000
FEW: Final = 50_000
"""Maximum number of messages in a project whose ids are collected before a search on SQLite, where the index
covers all projects.
"""
_SEARCH: Final = {"newest": "mail.search_newest", "best": "mail.search_best"}


def add(tx: SqlTransaction, message: Message) -> None:
    """Index a new message on PostgreSQL."""
    values = {
        "message_id": message.id,
        "project_id": message.project_id,
        "thread_id": message.thread_id,
        "words": tsvector(message),
    }
    tx.run("mail.index_words", values)
    tx.run("mail.index_thread", values)


def fill(tx: SqlTransaction) -> None:
    """Index all messages of a new store on PostgreSQL; on SQLite, the writer indexes them later."""
    if tx.dialect == "sqlite":
        return
    tx.one("mail.go_on_counting")
    after = 0
    while after := add_words(tx, after):
        pass
    add_threads(tx)


def add_words(tx: SqlTransaction, after: int) -> int:
    """Index the words of the next messages after an id; return the last indexed id, or 0 at the end."""
    rows = tx.all("mail.messages_after", {"after": after, "limit": _PAGE})
    for row in rows:
        tx.run("mail.index_words", {"message_id": row[0], "words": tsvector(record(Message, row))})
    return int(rows[-1][0]) if rows else 0


def add_threads(tx: SqlTransaction) -> None:
    """Index the threads of all messages on PostgreSQL."""
    # A single statement indexes all threads, because a row gets slower with each change by one transaction.
    tx.run("mail.index_threads")


def move(tx: SqlTransaction, source: int, target: int) -> None:
    """Move the index entries of a project's messages to another project; SQLite needs no change."""
    after, moved, values = 0, 0, {"project_id": source, "limit": _PAGE}
    while tx.dialect == "postgres" and (rows := tx.all("mail.project_messages", {**values, "after": after})):
        messages, moved = [record(Message, row) for row in rows], moved + len(rows)
        progress.tell("moving search entries: messages", moved)
        tx.run("mail.forget_words", {"ids": [message.id for message in messages]})
        for message in messages:
            words = tsvector(structs.replace(message, project_id=target))
            if message.recalled_at is None:
                tx.run("mail.index_words", {"message_id": message.id, "words": words})
        after = messages[-1].id


def find(
    tx: SqlTransaction, project_id: int, query: Query, order: SearchOrder, *, limit: int, cursor: int
) -> list[SearchHit]:
    """Return the messages of a project that match a query, as `RecordReads.search` describes."""
    values: dict[str, object] = {
        "limit": limit,
        "below": cursor or _NEWEST,
        "offset": cursor,
        "among": BEST_AMONG,
    }
    if tx.dialect == "sqlite":
        below = cursor if cursor and order == "newest" else _NEWEST
        values |= {"project_id": project_id, "match": fts5(query)}
        # Without the range of ids, FTS5 would examine every message of other projects for a word that is
        # common there. FTS5 uses only the first upper bound in a statement, so a cursor cannot add a second
        # one.
        first, last, count = tx.all("mail.project_ids", {"project_id": project_id, "most": FEW + 1})[0]
        few = project_id if count <= FEW else None
        values |= {"first": first, "last": min(last, below - 1), "few": few}
        rows = tx.all(_SEARCH[order], values)
        messages = [(message_of(row), row[-1]) for row in rows]
    elif (match := tsquery(query)) is None:
        return []
    else:
        values |= {"home": home(project_id), "match": match}
        messages = [(message_of(row), row[-1]) for row in tx.all(_SEARCH[order], values)]
    return [
        SearchHit(message=message, snippet=snippet(message, query), rank=rank) for message, rank in messages
    ]


def partly_searched(tx: SqlTransaction, project_id: int, query: Query, *, limit: int) -> list[int]:
    """Return the ids of messages that a search may have missed, as for `RecordReads.partly_searched`."""
    if not any(is_unspaced(word) for word, _ in asked_of(query)):
        return []
    return [row[0] for row in tx.all("mail.cut_messages", {"project_id": project_id, "limit": limit})]

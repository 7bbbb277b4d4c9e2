"""Renders a parsed query as an FTS5 expression; every word is quoted, so that none is read as syntax."""

from postroom.contracts.errors import InvalidArgument
from postroom.contracts.mail import All, AnyOf, Not, Phrase, Query, Term
from postroom.stores.mail.words import asked_words

MAX_DEPTH = 30
"""Maximum depth of a query: the parser of FTS5 fails at 32 levels of alternating AND and OR."""

_COLUMNS = {"subject": "subject", "body": "body_md", "sender": "sender_name", "topic": "topic"}
_NOTHING = '""'


def fts5(query: Query, *, depth: int = 0) -> str:
    """Return the FTS5 expression for a query; words without a letter or digit match nothing.

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
            return _joined(" AND ", parts, depth)
        case AnyOf(parts=parts):
            return _joined(" OR ", parts, depth)


def _joined(operator: str, parts: tuple[Query, ...], depth: int) -> str:
    return "(" + (operator.join(fts5(part, depth=depth + 1) for part in parts) or _NOTHING) + ")"


def _side_by_side(text: str, *, prefix: bool) -> str:
    if text.isascii():
        return _quoted(text) + (" *" if prefix else "")
    found, is_beginning = asked_words(text)
    return _quoted(" ".join(found)) + (" *" if found and (prefix or is_beginning) else "")


def _quoted(text: str) -> str:
    # FTS5 reads the expression up to the first NUL; in a text, a NUL only separates words.
    return '"' + text.replace('"', '""').replace("\0", " ") + '"'


def _in_column(field: str | None, expression: str) -> str:
    return f"{{{_COLUMNS[field]}}} : {expression}" if field else expression

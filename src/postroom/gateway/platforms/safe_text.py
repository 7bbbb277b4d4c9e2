"""Makes incoming text storable, and converts outgoing Markdown to HTML without active content."""

import re
from collections.abc import Iterable

import nh3
from markdown_it import MarkdownIt

from postroom.contracts.messages import Json

_HIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_BREAKS = re.compile(r"[\x00-\x20\x7f\x85\u2028\u2029]+")
_NESTING = 60
"""The maximum nesting depth. The parser ignores deeper levels: each costs a few Python stack frames."""
_TAGS = {
    *("h1", "h2", "h3", "h4", "h5", "h6", "p", "br", "hr", "blockquote", "ul", "ol", "li", "pre", "code"),
    *("em", "strong", "del", "s", "a", "table", "thead", "tbody", "tr", "th", "td"),
}
_LANGUAGE = re.compile(r"language-[\w+-]{1,40}")


def clean(text: str) -> str:
    """Remove control characters from a text, and replace lone surrogates."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return _HIDDEN.sub("", whole.replace("\r\n", "\n").replace("\r", "\n"))


def replace_unstorable(text: str) -> str:
    """Replace lone surrogates and null characters in a text.

    The UTF-16 length of the text does not change.
    """
    if not text.isascii():
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.replace("\0", "\ufffd")


def storable_json(value: Json) -> Json:
    """Apply `replace_unstorable` to all texts in a JSON value."""
    if isinstance(value, str):
        return replace_unstorable(value)
    if isinstance(value, dict):
        return {name: storable_json(part) for name, part in value.items()}
    return [storable_json(part) for part in value] if isinstance(value, list) else value


def one_line(text: str, *, longest: int = 200) -> str:
    """Return a text as one line of at most `longest` characters."""
    return _BREAKS.sub(" ", text.encode("utf-8", "replace").decode("utf-8")).strip()[:longest]


def poll_in_words(
    question: str | None, answers: Iterable[tuple[str | None, int | None]], *, kind: str = "Poll"
) -> str:
    """Return a poll as text, with one line for each answer and the number of votes."""
    lines = [
        f"- {words or ''}" + ("" if votes is None else f" ({votes} {'vote' if votes == 1 else 'votes'})")
        for words, votes in answers
    ]
    return "\n".join((f"{kind}: {question or ''}", *lines))


def to_html(markdown: str) -> str:
    """Convert Markdown to safe HTML without images and scripts.

    The HTML contains only links to web and mail addresses.
    """
    return nh3.clean(
        _PARSER.render(clean(markdown)),
        tags=_TAGS,
        attributes={"a": {"href"}, "ol": {"start"}, "code": {"class"}},
        attribute_filter=_allowed_attribute,
        url_schemes={"http", "https", "mailto"},
        link_rel=None,
    ).strip()


def is_marked_up(html: str, text: str) -> bool:
    """Return whether HTML contains formatting that the plain text lacks."""
    return bool(re.search(r"<(?!/?p>|br>)", html)) or "&" in text


def _allowed_attribute(tag: str, attribute: str, value: str) -> str | None:
    if attribute == "class":
        return value if _LANGUAGE.fullmatch(value) else None
    return value


_PARSER = MarkdownIt("commonmark", {"html": False, "linkify": False, "maxNesting": _NESTING, "breaks": True})
_PARSER.enable(["table", "strikethrough"])
_PARSER.disable("image")

"""Turns a message's Markdown into HTML that can neither act nor fetch.

Two steps, each enough by itself against a script: the parser knows no raw HTML, and an allow-list decides
what of its output stays. Pictures become links: one from elsewhere would tell its host who reads the mail.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict
from markupsafe import Markup, escape

from postroom.contracts.quoting import readable

MARKDOWN_LIMIT = 256 * 1024
"""Bytes of a body beyond which it is shown as plain text."""
PLAIN_SHOWN = 64 * 1024
"""Characters of such a body that are shown."""
INLINE_LIMIT = 16 * 1024
"""Bytes rendered on the event loop, about 5 ms; more is rendered on a worker thread."""
REMEMBERED = 16 * 1024 * 1024
"""Characters of finished HTML that are kept."""

# The parser drops what is quoted or nested deeper than this; each level costs a few Python frames.
_NESTING = 60

_TAGS = {
    *("p", "br", "hr", "h3", "h4", "h5", "h6", "blockquote", "ul", "ol", "li", "pre", "code"),
    *("em", "strong", "s", "a", "div", "table", "thead", "tbody", "tr", "th", "td"),
}
_ALIGNED = {"align-center", "align-right"}
_OWN_DIRECTION = {"bullet_list_open", "ordered_list_open", "blockquote_open"}
_CLASSES = {"th": _ALIGNED, "td": _ALIGNED, "div": {"wide"}}
_SCROLLED = {"pre": {"tabindex": "0"}, "div": {"tabindex": "0"}}
"""What may be wider than its page and scrolls by itself: who has no pointer must be able to stand in it."""
_SCHEMES = ("http://", "https://", "mailto:")
_HEADINGS = {"h1": "h3", "h2": "h4", "h3": "h5", "h4": "h6", "h5": "h6", "h6": "h6"}
_ALIGNMENTS = {"text-align:center": "align-center", "text-align:right": "align-right"}


@dataclass(frozen=True, slots=True)
class Body:
    """A body as a page shows it; `cut` when only its beginning is there, as plain text."""

    html: Markup
    size: int
    cut: bool = False


def to_html(text: str) -> str:
    """Return the HTML of a Markdown text: allowed tags only, no picture, no script, links to the web only."""
    env: dict[str, Any] = {}
    tokens = _PARSER.parse(_bytes(text).decode("utf-8"), env)
    for token in tokens:
        _fit_the_page(token)
    return nh3.clean(
        _PARSER.renderer.render(tokens, _PARSER.options, env),
        tags=_TAGS,
        attributes={"a": {"href", "title"}, "ol": {"start"}},
        attribute_filter=_kept,
        allowed_classes=_CLASSES,
        tag_attribute_values={tag: {"dir": {"auto"}} for tag in ("ul", "ol", "blockquote")},
        set_tag_attribute_values=_SCROLLED,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )


class Markdown:
    """Renders bodies and remembers the results by the hash of the text. Belongs to one event loop."""

    def __init__(self, *, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._held = 0
        self._results: OrderedDict[bytes, Body] = OrderedDict()
        self._one_renders = asyncio.Semaphore(1)

    async def render(self, texts: Mapping[int, str]) -> dict[int, Body]:
        """Return the body of each text; the loop itself renders at most `INLINE_LIMIT` bytes of Markdown."""
        keys = {number: _key(text) for number, text in texts.items()}
        missing = {key: texts[number] for number, key in keys.items() if key not in self._results}
        made = await self._make(list(missing.values()))
        fresh = dict(zip(missing, made, strict=True))
        bodies = {number: fresh[key] if key in fresh else self._results[key] for number, key in keys.items()}
        for number, key in keys.items():
            self._remember(key, bodies[number])
        return bodies

    async def _make(self, texts: Sequence[str]) -> list[Body]:
        if sum(len(_bytes(text)) for text in texts) <= INLINE_LIMIT:
            return [_body(text) for text in texts]
        async with self._one_renders:
            return await asyncio.to_thread(lambda: [_body(text) for text in texts])

    def _remember(self, key: bytes, body: Body) -> None:
        if key not in self._results:
            self._held += len(body.html)
        self._results[key] = body
        self._results.move_to_end(key)
        while self._held > self._remembered:
            _, oldest = self._results.popitem(last=False)
            self._held -= len(oldest.html)


def _body(text: str) -> Body:
    size, text = len(_bytes(text)), readable(text)  # what turns the direction of writing is named
    if size > MARKDOWN_LIMIT:
        plain = Markup('<pre class="plain" tabindex="0">') + escape(text[:PLAIN_SHOWN]) + Markup("</pre>")
        return Body(plain, size, cut=True)
    return Body(Markup(to_html(text)), size)  # noqa: S704 - the allow-list above is what makes it safe


def _key(text: str) -> bytes:
    return hashlib.sha256(_bytes(text)).digest()


def _bytes(text: str) -> bytes:
    """Encode, with a mark in the place of halves of surrogate pairs: no page can hold them."""
    return text.encode("utf-8", "replace")


def _fit_the_page(token: Token) -> None:
    """Put headings below those of the page, and alignment into classes: no page allows inline style.

    Lists and quotations take the side on which their marks stand from their own first letters.
    """
    if token.type in _OWN_DIRECTION:
        token.attrs["dir"] = "auto"
    token.tag = _HEADINGS.get(token.tag, token.tag)
    style = token.attrs.pop("style", None)
    if style in _ALIGNMENTS:
        token.attrs["class"] = _ALIGNMENTS[str(style)]


def _kept(tag: str, attribute: str, value: str) -> str | None:
    if attribute == "href" and not value.lower().startswith(_SCHEMES):
        return None
    return value


def _picture_as_link(
    renderer: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: Any
) -> str:
    token = tokens[at]
    name = renderer.renderInlineAsText(token.children or [], options, env) or "picture"
    return str(Markup('<a href="{}">{}</a>').format(token.attrs.get("src", ""), name))


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False, "maxNesting": _NESTING})
    parser.enable(["table", "strikethrough"])
    parser.add_render_rule("image", _picture_as_link)
    parser.add_render_rule("table_open", lambda *_: '<div class="wide"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return parser


_PARSER = _parser()

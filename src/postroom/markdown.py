"""Converts the Markdown of messages and answers to HTML that runs no scripts and loads nothing external.

Each of two steps alone prevents scripts: the parser does not support raw HTML, and an allow-list filters its
output. External images become links, because loading an image would tell its host who reads the mail. An
attached image is shown in place, and is loaded from this server.
"""

import asyncio
import contextlib
import hashlib
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import unquote

import nh3
from markdown_it import MarkdownIt
from markdown_it.parser_inline import ParserInline
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import OptionsDict
from markupsafe import Markup, escape

from postroom.contracts.errors import TooLarge
from postroom.contracts.quoting import readable

MARKDOWN_LIMIT = 256 * 1024
"""A body that exceeds this size in bytes is shown as plain text."""
PLAIN_SHOWN = 64 * 1024
"""Maximum number of characters of a plain-text body that are shown."""
INLINE_LIMIT = 16 * 1024
"""Maximum number of bytes that are rendered on the event loop, in about 5 ms.

Longer texts are rendered in a thread.
"""
REMEMBERED = 16 * 1024 * 1024
"""Maximum number of characters of rendered HTML that are cached."""

MAX_LOOKS: Final = 200_000
"""Maximum number of steps of the parser within brackets, which take some tenths of a second.

Each open bracket is examined up to 60 levels deep.
"""
MAX_TOKENS: Final = 60_000
"""Maximum number of blocks and table cells in a body; the parser pads each table row to the number of
columns.
"""

# The parser drops quotations and lists that are nested deeper; each level costs a few Python frames.
_NESTING = 60
_DEEP = 12
"""The nesting level from which a quotation or list gets its own scroll bar, because it may not fit on a
narrow page.
"""

_TAGS = {
    *("p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "ul", "ol", "li", "pre", "code"),
    *("em", "strong", "s", "a", "div", "table", "thead", "tbody", "tr", "th", "td", "span", "img"),
}
_ALIGNED = {"align-center", "align-right"}
_OWN_DIRECTION = {"bullet_list_open", "ordered_list_open", "blockquote_open"}
_CLASSES = {
    **{"th": _ALIGNED, "td": _ALIGNED, "div": {"wide"}},
    **{"span": {"added", "removed", "place"}, "li": {"task"}},
}
_SCROLLED = {"pre": {"tabindex": "0"}, "div": {"tabindex": "0"}}
"""Tags whose content scrolls, because it may be wider than the page.

Scrolling tags need the keyboard focus for people without a pointing device.
"""
_SCHEMES = ("http://", "https://", "mailto:")
_LANGUAGE: Final = re.compile(r"[\w+#.-]{1,30}")
_DIFFS = {"diff", "patch"}
_DIFF_LINES = {"+": "added", "-": "removed", "@": "place"}
# A web address excludes final punctuation, and includes a closing bracket only if it contains the opening
# one.
_ADDRESS = re.compile(
    r"\bhttps?://[^\s<>\"'`()]+(?:\([^\s<>\"'`()]*\)[^\s<>\"'`()]*)*(?<![.,:;!?*_])", re.IGNORECASE
)
REFERENCE: Final = re.compile(
    r"(?:#(?<![\w#&/]#)[1-9][0-9]{0,17}(?![\w-])"
    r"|@(?<![\w@./-]@)[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?(?!\w))"
)
"""Matches a reference in a text to a message by number, or to an agent or person by name: `#12`, `@lena`."""
_TASK = re.compile(r"\[([ xX])\](?= )")
BELOW_A_PAGE: Final[Mapping[str, str]] = MappingProxyType(
    {"h1": "h3", "h2": "h4", "h3": "h5", "h4": "h6", "h5": "h6", "h6": "h6"}
)
"""The heading tags for a text on a page, which rank below the two headings of the page itself."""
AS_WRITTEN: Final[Mapping[str, str]] = MappingProxyType({})
_ALIGNMENTS = {"text-align:center": "align-center", "text-align:right": "align-right"}


Pictures = Mapping[str, str]
References = Mapping[str, str]
"""Maps references that a text may contain, such as `#12` and `@lena`, to addresses on this server."""
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Body:
    """A message body as a page shows it.

    `tangled` states that the body is shown as plain text. `cut` states that the end of the body is missing.
    """

    html: Markup
    size: int
    cut: bool = False
    tangled: bool = False


def to_html(
    text: str,
    pictures: Pictures = _NONE,
    references: References = _NONE,
    *,
    headings: Mapping[str, str] = BELOW_A_PAGE,
) -> str:
    """Convert Markdown to HTML without scripts; only allowed tags and attributes remain.

    `pictures` maps the names of images in the text to addresses on this server. Words that are keys of
    `references` become links, except in code and within links. `headings` maps the tag of each heading to the
    tag that is shown.

    Raises:
        TooLarge: Rendering the text takes too much work.
    """
    env: dict[str, Any] = {"pictures": pictures, "references": references}
    tokens = PARSER.parse(_bytes(text).decode("utf-8"), env)
    for token in tokens:
        # Demote headings below those of the page, and replace inline styles for alignment by classes.
        # The text direction of lists and quotations is derived from their first characters.
        if token.type in _OWN_DIRECTION:
            token.attrs["dir"] = "auto"
        token.tag = headings.get(token.tag, token.tag)
        style = token.attrs.pop("style", None)
        if style in _ALIGNMENTS:
            token.attrs["class"] = _ALIGNMENTS[str(style)]
    for item, _, inline in zip(tokens, tokens[1:], tokens[2:], strict=False):
        # Replace the check box of a task by a character that shows whether the task is done.
        first = inline.children[0] if inline.children else None
        if item.type != "list_item_open" or inline.type != "inline" or first is None or first.type != "text":
            continue
        if box := _TASK.match(first.content):
            first.content = ("☐" if box[1] == " " else "☑") + first.content[box.end() :]
            item.attrs["class"] = "task"
    # Wrap each deeply nested block of the text in a box with a scroll bar.
    shown: list[Token] = []
    begin = 0
    for at, token in enumerate(tokens, 1):
        if token.level == 0 and token.nesting <= 0:
            block, begin = list(tokens[begin:at]), at
            is_deep = max(token.level for token in block) >= _DEEP
            shown += [Token("wide_open", "", 1), *block, Token("wide_close", "", -1)] if is_deep else block
    return nh3.clean(
        PARSER.renderer.render(shown, PARSER.options, env),
        tags=_TAGS,
        attributes={"a": {"href", "title"}, "ol": {"start"}, "img": {"src", "alt"}, "pre": {"data-language"}},
        attribute_filter=lambda tag, attribute, value: _allowed_attribute(
            tag, attribute, value, pictures, references
        ),
        allowed_classes=_CLASSES,
        tag_attribute_values={tag: {"dir": {"auto"}} for tag in ("ul", "ol", "blockquote")},
        set_tag_attribute_values=_SCROLLED,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )


class Markdown:
    """Renders message bodies, and caches the results.

    A renderer belongs to one event loop.
    """

    def __init__(self, *, remembered: int = REMEMBERED, headings: Mapping[str, str] = BELOW_A_PAGE) -> None:
        """Create a renderer; `remembered` is the maximum number of cached characters of HTML."""
        self._remembered = remembered
        self._headings = headings
        self._held = 0
        self._results: OrderedDict[bytes, Body] = OrderedDict()
        self._one_renders = asyncio.Semaphore(1)

    async def render(
        self,
        texts: Mapping[int, str],
        pictures: Mapping[int, Pictures] = MappingProxyType({}),
        references: Mapping[int, References] = MappingProxyType({}),
    ) -> dict[int, Body]:
        """Return the rendered body of each text.

        `pictures` and `references` have the keys of `texts`. If the texts have more than `INLINE_LIMIT`
        bytes, a thread renders them.
        """
        given_fields = {
            number: (text, pictures.get(number, _NONE), references.get(number, _NONE))
            for number, text in texts.items()
        }
        keys = {number: _key(*item) for number, item in given_fields.items()}
        missing = {key: given_fields[number] for number, key in keys.items() if key not in self._results}
        if sum(len(_bytes(text)) for text, *_ in missing.values()) <= INLINE_LIMIT:
            made = [_body(*item, self._headings) for item in missing.values()]
        else:
            async with self._one_renders:
                made = await asyncio.to_thread(
                    lambda: [_body(*item, self._headings) for item in missing.values()]
                )
        fresh = dict(zip(missing, made, strict=True))
        bodies = {number: fresh[key] if key in fresh else self._results[key] for number, key in keys.items()}
        for number, key in keys.items():
            body = bodies[number]
            if key not in self._results:
                self._held += len(body.html)
            self._results[key] = body
            self._results.move_to_end(key)
            while self._held > self._remembered:
                _, oldest = self._results.popitem(last=False)
                self._held -= len(oldest.html)
        return bodies


def _body(text: str, pictures: Pictures, references: References, headings: Mapping[str, str]) -> Body:
    # characters that change the writing direction are shown by name
    size, text = len(_bytes(text)), readable(text)
    if size <= MARKDOWN_LIMIT:
        with contextlib.suppress(TooLarge):
            html = to_html(text, pictures, references, headings=headings)
            return Body(Markup(html), size)  # noqa: S704 - the allow-list above makes it safe
    plain = Markup('<pre class="plain" tabindex="0">') + escape(text[:PLAIN_SHOWN]) + Markup("</pre>")
    return Body(
        plain, size, cut=len(text) > PLAIN_SHOWN or size > MARKDOWN_LIMIT, tangled=size <= MARKDOWN_LIMIT
    )


def _key(text: str, pictures: Pictures, references: References) -> bytes:
    beside = f"{sorted(pictures.items())}{sorted(references.items())}\n" if pictures or references else ""
    return hashlib.sha256(_bytes(beside + text)).digest()


def _bytes(text: str) -> bytes:
    """Encode a text as UTF-8; lone surrogates are replaced."""
    return text.encode("utf-8", "replace")


class _Inline(ParserInline):
    """Parses inline content, and raises TooLarge after too many steps."""

    def skipToken(self, state: StateInline) -> None:
        state.env["looks"] = looks = state.env.get("looks", 0) + 1
        if looks > MAX_LOOKS:
            raise TooLarge(f"the brackets of the text take more than {MAX_LOOKS} steps to parse")
        super().skipToken(state)


def _bound_blocks(state: StateCore) -> None:
    """Raise TooLarge if a text has too many blocks."""
    state.env.setdefault("looks", 0)
    if len(state.tokens) > MAX_TOKENS:
        raise TooLarge(f"the text has more than {MAX_TOKENS} blocks and cells")


def _link_references(state: StateCore) -> None:
    """Convert the references in a text to links, except within links."""
    references: References = state.env.get("references", _NONE)
    for block in state.tokens if references else ():
        children, depth = list[Token](), 0
        for token in block.children or ():
            depth += token.nesting if token.type in ("link_open", "link_close") else 0
            is_plain = token.type == "text" and not depth
            children += _with_links(token, references) if is_plain else [token]
        if block.type == "inline":
            block.children = children


def _with_links(token: Token, references: References) -> list[Token]:
    """Split a text at its references, and convert the references to links."""
    tokens, end = list[Token](), 0
    for word in REFERENCE.finditer(token.content):
        if (address := references.get(word[0])) is not None:
            tokens += [
                Token("text", "", 0, content=token.content[end : word.start()], level=token.level),
                Token("link_open", "a", 1, attrs={"href": address}, level=token.level),
                Token("text", "", 0, content=word[0], level=token.level + 1),
                Token("link_close", "a", -1, level=token.level),
            ]
            end = word.end()
    return [*tokens, Token("text", "", 0, content=token.content[end:], level=token.level)]


@dataclass(frozen=True, slots=True)
class _Address:
    """A web address in a text, in the form that the parser's link rule expects."""

    index: int
    last_index: int
    url: str
    schema: str = "https:"

    @property
    def text(self) -> str:
        return self.url


class _WebAddresses:
    """Finds web addresses that begin with `http://` or `https://`, for the parser's link rule."""

    def pretest(self, text: str) -> bool:
        return "://" in text

    def test(self, text: str) -> bool:
        return _ADDRESS.search(text) is not None

    def match(self, text: str) -> list[_Address]:
        return [_Address(match.start(), match.end(), match[0]) for match in _ADDRESS.finditer(text)]


def _allowed_attribute(
    tag: str, attribute: str, value: str, pictures: Pictures, references: References
) -> str | None:
    if attribute == "href" and not (value.lower().startswith(_SCHEMES) or value in references.values()):
        return None
    if attribute == "src" and value not in pictures.values():
        return None
    return value


def _picture(renderer: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: Any) -> str:
    """Render an attached image as an image, and any other image as a link."""
    token = tokens[at]
    name = renderer.renderInlineAsText(token.children or [], options, env) or "picture"
    source = str(token.attrs.get("src", ""))
    if (shown := env["pictures"].get(unquote(source))) is not None:
        return str(Markup('<img src="{}" alt="{}">').format(shown, name))
    return str(Markup('<a href="{}">{}</a>').format(source, name))


def _fence(renderer: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: Any) -> str:
    """Render a code block; in a diff, added and removed lines are marked."""
    text = tokens[at].content
    language = tokens[at].info.strip().partition(" ")[0]
    named = Markup(' data-language="{}"').format(language) if _LANGUAGE.fullmatch(language) else ""
    code: Markup = escape(text)
    if language.lower() in _DIFFS or text.startswith("diff --git "):
        code = Markup("").join(
            Markup('<span class="{}">{}</span>').format(_DIFF_LINES[line[0]], line)
            if line[0] in _DIFF_LINES and not line.startswith(("+++ ", "--- "))
            else line
            for line in text.splitlines(keepends=True)
        )
    return str(Markup("<pre{}><code>{}</code></pre>\n").format(named, code))


def _parser() -> MarkdownIt:
    parser = MarkdownIt()
    parser.inline = _Inline()
    parser.configure("commonmark", {"html": False, "linkify": True, "maxNesting": _NESTING})
    parser.enable(["table", "strikethrough"])
    parser.core.ruler.after("block", "bound_blocks", _bound_blocks)
    parser.core.ruler.enable("linkify")
    parser.linkify = _WebAddresses()
    parser.core.ruler.push("references", _link_references)
    parser.add_render_rule("image", _picture)
    parser.add_render_rule("fence", _fence)
    parser.add_render_rule("table_open", lambda *_: '<div class="wide"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    parser.add_render_rule("wide_open", lambda *_: '<div class="wide">')
    parser.add_render_rule("wide_close", lambda *_: "</div>\n")
    return parser


PARSER: Final = _parser()

"""The words of a mail: HTML as text, without the history and the signature below. No I/O."""

import re
from html.parser import HTMLParser
from typing import Final

from postroom.gateway.events import Forwarded

LONGEST = 400_000
"""Maximum characters that are read; a person's mail is shorter."""
_SILENT = re.compile(r"<(!--|(?:script|style|title|template|noscript|svg|object)\b)", re.IGNORECASE)
"""Where something begins of which nothing is shown."""
_ADDRESS: Final = re.compile(r"\bhref\s*=\s*(?:\"([^\"<>]{1,2000})\"|'([^'<>]{1,2000})')", re.IGNORECASE)
_SHOWN: Final = re.compile(r"(?:https?|mailto|tel):\S+", re.IGNORECASE)
_TAG = re.compile(r"<(/?[A-Za-z][A-Za-z0-9]{0,20})(?:[\s/][^<>]*)?>")
_BLOCKS = {
    *("address", "article", "blockquote", "div", "dl", "dd", "dt", "fieldset", "figure", "footer", "form"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "ol", "p", "pre", "section", "table"),
    *("tr", "ul", "br"),
}
_WROTE = re.compile(
    r"^(?:on|am|le|el|il|op|den|em|w dniu)\b.{4,200}\b(?:wrote|schrieb|a écrit|escribió|ha scritto|schreef"
    r"|skrev|escreveu|napisał\S*)\b.{0,120}:\s*$",
    re.IGNORECASE,
)
_DIVIDER = re.compile(
    r"^\s*(?:-{3,}\s*(?:original message|ursprüngliche nachricht)\s*-{3,}|_{20,})\s*$", re.I
)
_HEADING = re.compile(r"^\s*\*?(?:from|von|de)\s*:\*?\s", re.IGNORECASE)
_SECOND_HEADING = re.compile(
    r"^\s*\*?(?:sent|date|to|gesendet|datum|an|envoyé|enviado)\s*:\*?\s", re.IGNORECASE
)
_FORWARD_MARK = re.compile(
    r"^\s*(?:-{2,}\s*)?(?:begin forwarded message|forwarded message|anfang der weitergeleiteten nachricht"
    r"|weitergeleitete nachricht|début du message (?:réexpédié|transféré)|message transféré"
    r"|inicio del mensaje reenviado|mensaje reenviado|inizio messaggio inoltrato|messaggio inoltrato"
    r"|doorgestuurd bericht|begin doorgestuurd bericht|mensagem encaminhada|vidarebefordrat meddelande"
    r"|videresendt (?:besked|melding)|przekazana wiadomość)\s*:?\s*(?:-{2,})?\s*:?\s*$",
    re.IGNORECASE,
)
"""The line that mail programs put above a forwarded mail."""
_FORWARD_SUBJECT = re.compile(
    r"^\s*(?:fwd?|wg|tr|rv|enc|vb|vs|pd|i|doorst|fs|trs|转发|轉寄|転送)\s*:", re.IGNORECASE
)
_AUTHOR = re.compile(r"^[>\s]*\*?(?:from|von|de|da|van|od|från|fra)\s*:\*?\s*(\S.{0,200})$", re.IGNORECASE)
_MOST_HEADS = 12
"""Lines below the mark that may name the author of forwarded text."""
_SHORT_SIGNATURE = 10
"""Lines at the end within which two dashes without a blank begin a signature too."""


class _Words(HTMLParser):
    """Collects the words of a page; quoted text gets quotation marks."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self._line: list[str] = []
        self._quoted = 0
        self._pre = 0
        self._address: str | None = None
        """Where the link leads whose words are read."""
        self._label_at = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _BLOCKS:
            self.end_line(is_break=tag == "br")
        if tag == "blockquote":
            self._quoted += 1
        elif tag == "pre":
            self._pre += 1
        elif tag == "li":
            self._line.append("- ")
        elif tag == "a":
            self._address = next((value for name, value in attrs if name == "href" and value), None)
            self._label_at = len(self._line)
        elif tag in ("td", "th") and self._line:
            self._line.append(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _BLOCKS:
            self.end_line(is_break=True)

    def handle_endtag(self, tag: str) -> None:
        if tag in _BLOCKS:
            self.end_line()
        if tag == "a" and self._address is not None:
            label, address = "".join(self._line[self._label_at :]).strip(), self._address.strip()
            is_same = label.rstrip("/") in (address.rstrip("/"), address.partition(":")[2].strip("/"))
            if label and not is_same and _SHOWN.fullmatch(address):
                self._line.append(f" ({address})")
            self._address = None
        if tag == "blockquote":
            self._quoted = max(0, self._quoted - 1)
        elif tag == "pre":
            self._pre = max(0, self._pre - 1)
        if tag in ("p", "h1", "h2", "h3", "h4", "h5", "h6") and self.lines and self.lines[-1]:
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        if self._pre:
            first, *more = data.split("\n")
            self._line.append(first)
            for line in more:
                self.end_line(is_break=True)
                self._line.append(line)
        else:
            self._line.append(re.sub(r"\s+", " ", data))

    def end_line(self, *, is_break: bool = False) -> None:
        """Begin a new line; an empty line only if the page contains one."""
        text = "".join(self._line)
        text = text.rstrip() if self._pre else text.strip()
        self._line = []
        if text or is_break:
            self.lines.append("> " * min(self._quoted, 5) + text)


def text_of_html(html: str) -> str:
    """Return the words of a page, with the addresses of its links, and without scripts and styles.

    The parser gets plain tags and words alone: on broken comments and tags it would take very long.
    """
    words = _Words()
    words.feed(_plain_tags(_heard(html[:LONGEST])))
    words.close()
    words.end_line()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(words.lines)).strip()


def _heard(html: str) -> str:
    """Return a page without comments, scripts and similar parts.

    An unclosed part reaches to the end of the page.
    """
    kept, at = [], 0
    while found := _SILENT.search(html, at):
        kept.append(html[at : found.start()])
        end = "-->" if found[1] == "!--" else f"</{found[1]}"
        closing = re.compile(re.escape(end), re.IGNORECASE).search(html, found.end())
        if closing is None:
            return "".join(kept)
        at = closing.end() if end == "-->" else closing.start()
    return "".join((*kept, html[at:]))


def _plain_tags(html: str) -> str:
    """Return a page with its tags alone: of what stands in them, the addresses of links stay.

    Any other `<` is a sign like others.
    """
    parts, at = [], 0
    for tag in _TAG.finditer(html):
        name = tag[1]
        if name.lower() == "a" and (found := _ADDRESS.search(tag[0])):
            name = f'a href="{(found[1] or found[2]).replace(chr(34), "%22")}"'
        parts += [html[at : tag.start()].replace("<", "&lt;"), f"<{name}>"]
        at = tag.end()
    return "".join((*parts, html[at:].replace("<", "&lt;")))


def unflowed(text: str) -> str:
    """Return a text of `format=flowed` with its paragraphs whole."""
    lines: list[str] = []
    joins = False
    for raw in text.split("\n"):
        line = raw.removeprefix(" ")
        if joins and not line.startswith(">") and line != "-- ":
            lines[-1] += line
        else:
            lines.append(line)
        joins = line.endswith(" ") and line != "-- " and not line.startswith(">")
    return "\n".join(lines)


def own_words(text: str) -> str:
    """Return the sender's new words: without the signature and the history below them.

    Words below a quotation answer it: then everything stays, as it does if nothing would be left.
    """
    whole = text[:LONGEST].strip()
    lines = _without_signature(whole.split("\n"))
    lines = _without_history(lines)
    return "\n".join(lines).strip() or whole


def with_forwarded(text: str, subject: str) -> tuple[str, Forwarded | None]:
    """Return the sender's new words, and the words that they forward below them, or None.

    Mail programs put the same lines above a forwarded mail and above an answered mail: then the subject
    decides.
    """
    whole = text[:LONGEST].strip()
    lines = whole.split("\n")
    at = next((at for at, line in enumerate(lines) if _FORWARD_MARK.match(line)), None)
    if at is None and _FORWARD_SUBJECT.match(subject):
        at = next((at for at in range(len(lines)) if _begins_history(lines, at)), None)
        if at is None:
            return whole, None  # all of it: nobody can tell whose words they are
    if at is None:
        return own_words(text), None
    below = lines[at:]
    if all(line.startswith(">") for line in below[1:] if line.strip()):
        below = [line.removeprefix(">").removeprefix(" ") for line in below]
    named = (_AUTHOR.match(line) for line in below[:_MOST_HEADS])
    author = next((found[1].strip().strip("*") for found in named if found), None)
    own = own_words("\n".join(lines[:at]))
    return own, Forwarded(text="\n".join(below).strip(), author=author)


def _begins_history(lines: list[str], at: int) -> bool:
    is_divided = bool(_DIVIDER.match(lines[at])) and _is_heading(lines[at + 1 : at + 5])
    is_headed = (at == 0 or not lines[at - 1].strip()) and _is_heading(lines[at : at + 3])
    return is_divided or is_headed or lines[at].startswith(">") or _after_attribution(lines, at) > at


def _without_signature(lines: list[str]) -> list[str]:
    for at, line in enumerate(lines):
        if line == "-- " or (line == "--" and at >= len(lines) - _SHORT_SIGNATURE):
            return lines[:at]
    return lines


def _without_history(lines: list[str]) -> list[str]:
    last_own = max((at for at, line in enumerate(lines) if line.strip() and line[0] != ">"), default=-1)
    for at, line in enumerate(lines):
        if _DIVIDER.match(line) and _is_heading(lines[at + 1 : at + 5]):
            return lines[:at]
        if at and not lines[at - 1].strip() and _is_heading(lines[at : at + 3]):
            return lines[:at]
        if at <= last_own < _after_attribution(lines, at):
            return lines[:at]
        if at > last_own:
            return lines[:at]
    return lines


def _is_heading(lines: list[str]) -> bool:
    """Return whether lines begin as the header that mail programs put above an answered mail."""
    told = [line[:200] for line in lines if line.strip()]
    return len(told) >= 2 and bool(_HEADING.match(told[0])) and bool(_SECOND_HEADING.match(told[1]))


def _after_attribution(lines: list[str], at: int) -> int:
    """Return the end of a line `On … wrote:` that begins here, in up to three lines; else `at`."""
    joined = ""
    for length, line in enumerate(lines[at : at + 3], start=1):
        joined = f"{joined} {line[:400].strip()}".strip()
        if len(joined) < 400 and joined.endswith(":") and _WROTE.match(joined):
            return at + length
    return at

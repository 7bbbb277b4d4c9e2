"""Slack's text dialect, both ways: Markdown becomes mrkdwn, and incoming text becomes plain words.

In mrkdwn only `&`, `<` and `>` are written as entities, and only `<…>` makes links and mentions. Every `<`
that postroom writes is an entity, so an agent's text cannot notify a whole channel. Each function takes time
in proportion to the text, whatever it contains.
"""

import html
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

_HELD: Final = re.compile("\ue001(\\d+)\ue002")
_PRIVATE: Final = re.compile("[\ue000-\ue002]")
_STRONG: Final = "\ue000"
"""Stands for the star of strong text, until the stars of stressed text are gone."""

_FENCE: Final = re.compile(r" {0,3}(`{3,}(?=[^`]*\Z)|~{3,})[ \t]*([^\n]*)\Z")
_LANGUAGE: Final = re.compile(r"[\w+#.-]*[ \t]*", re.ASCII)
_HEADING: Final = re.compile(r" {0,3}#{1,6}[ \t]+(.*)\Z")
_BULLET: Final = re.compile(r"([ \t]*)[-*+][ \t]+(?=\S)")
_RULE: Final = re.compile(r" {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})\Z")
_QUOTE: Final = re.compile(r" {0,3}((?:>[ ]?)+)")
_TABLE: Final = re.compile(r"\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?\Z")
_MARKED: Final = re.compile(r"[*_~`<>&\[#+-]")
"""The characters that a line must contain to need conversion."""

_LINK: Final = re.compile(
    r"!?\[([^\[\]\n]+)\]"
    r"\(<?((?:https?://|mailto:|tel:)[^()\s<>]+(?:\([^()\s<>]*\)[^()\s<>]*)*)>?(?:[ \t]+\"[^\"\n]*\")?\)"
)
_ADDRESS: Final = re.compile(r"<((?:https?://|mailto:|tel:)[^\s<>]+)>|(https?://[^\s<>|\ue001]+)")
_STRIKE: Final = re.compile(r"~~(?=\S)([^~\n]+)(?<=\S)~~")
_BOTH: Final = re.compile(r"\*\*\*(?=[^\s*])([^*\n]+)(?<=\S)\*\*\*")
_STARS: Final = re.compile(r"\*\*(?=\S)((?:[^*\n]|\*(?!\*))+)(?<=\S)\*\*")
_LINES: Final = re.compile(r"(?<!\w)__(?=\S)((?:[^_\n]|_(?!_))+)(?<=\S)__(?!\w)")
_STRESS: Final = re.compile(r"(?<![\w*])\*(?=\S)([^*\n]+)(?<=\S)\*(?![\w*])")

_ANGLES: Final = re.compile(r"<([@#!][^<>\n]+|[A-Za-z][A-Za-z0-9+.-]*:[^<>\n]+)>")
_SAME: Final = re.compile(r"\A(?:https?://|mailto:|tel:)?(.*?)/?\Z", re.DOTALL)


def escape(text: str) -> str:
    """Return the text as it stands, so that Slack shows each character of it."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def to_mrkdwn(markdown: str) -> str:
    """Return Markdown in Slack's dialect; marks that the dialect lacks become words or stay as typed."""
    shown: list[str] = []
    lines = _PRIVATE.sub("", markdown).replace("\r\n", "\n").split("\n")
    at = 0
    while at < len(lines):
        if fence := _FENCE.match(lines[at]):
            at = _code(lines, at, fence, shown)
        elif _begins_table(lines, at):
            at = _table(lines, at, shown)
        else:
            shown.append(_line(lines[at]))
            at += 1
    return "\n".join(shown)


def from_slack(text: str) -> str:
    """Return a person's text as plain words: links and names are spelt out, entities are characters."""
    return html.unescape(_entities_only(_ANGLES.sub(_spelt, text)))


_SILENT_BLOCKS: Final = ("divider", "input", "file")


def blocks_text(blocks: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[str, ...]]:
    """Return the text of Block Kit's blocks, in the dialect of messages, and the names of unread parts."""
    said, unread = [], []
    for block in blocks:
        words = _block(block)
        if words:
            said.append(words)
        elif block.get("type") not in _SILENT_BLOCKS:
            unread.append(f"a block of the kind {block.get('type')}")
    return "\n".join(said), tuple(unread)


def _block(part: object) -> str:
    """Return the words of a block, or of a part of one."""
    if isinstance(part, str):
        return part
    if isinstance(part, Sequence):
        return "".join(_block(one) for one in part)
    if not isinstance(part, Mapping):
        return ""
    kind = part.get("type")
    read = _INLINE.get(str(kind))
    if read is not None:
        return read(part)
    if kind == "rich_text_list":
        return "".join(f"- {_block(one)}\n" for one in part.get("elements") or ())
    if kind in ("section", "header", "context", "actions"):
        parts = [part.get("text"), *(part.get("fields") or ()), part.get("accessory")]
        said = [_block(one) for one in (*parts, *(part.get("elements") or ()))]
        return "\n".join(one for one in said if one)
    words = part.get("text")
    return words if isinstance(words, str) else _block(part.get("elements"))


def _link(part: Mapping[str, Any]) -> str:
    label = part.get("text")
    return f"<{part.get('url')}|{label}>" if label else f"<{part.get('url')}>"


def _image(part: Mapping[str, Any]) -> str:
    told = (_block(part.get("title")), part.get("alt_text"), part.get("image_url"))
    return "image: " + ", ".join(str(one) for one in told if one)


def _button(part: Mapping[str, Any]) -> str:
    address = part.get("url")
    return f"[{_block(part.get('text'))}]" + (f" <{address}>" if address else "")


_INLINE: Final[dict[str, Callable[[Mapping[str, Any]], str]]] = {
    "link": _link,
    "user": lambda part: f"<@{part.get('user_id')}>",
    "channel": lambda part: f"<#{part.get('channel_id')}>",
    "usergroup": lambda part: f"<!subteam^{part.get('usergroup_id')}>",
    "broadcast": lambda part: f"<!{part.get('range')}>",
    "emoji": lambda part: f":{part.get('name')}:",
    "image": _image,
    "video": lambda part: f"video: {_block(part.get('title'))}, {part.get('title_url')}",
    "button": _button,
}


def without_mention(text: str, user_id: str) -> tuple[str, bool]:
    """Return a line without the mentions of one user, and whether there were any."""
    mention = rf"<@{re.escape(user_id)}(?:\|[^<>]*)?>"
    begun = re.sub(rf"\A\s*{mention}[ \t]*[:,]?", "", text)
    left = re.sub(rf" ?{mention}", "", begun)
    return left.strip(), left != text


def _code(lines: Sequence[str], at: int, fence: re.Match[str], shown: list[str]) -> int:
    marker, info = fence[1], fence[2]
    closing = re.compile(rf" {{0,3}}{marker[0]}{{{len(marker)},}}[ \t]*\Z")
    end = next((one for one in range(at + 1, len(lines)) if closing.match(lines[one])), len(lines))
    told = [] if _LANGUAGE.fullmatch(info) else [info]
    shown += ["```", *(_in_code(line) for line in (*told, *lines[at + 1 : end])), "```"]
    return end + 1


def _begins_table(lines: Sequence[str], at: int) -> bool:
    if at + 1 >= len(lines) or "|" not in lines[at] or "|" not in lines[at + 1]:
        return False
    return _TABLE.match(lines[at + 1].strip()) is not None


def _table(lines: Sequence[str], at: int, shown: list[str]) -> int:
    end = next((one for one in range(at, len(lines)) if "|" not in lines[one]), len(lines))
    shown += ["```", *(_in_code(line) for line in lines[at:end]), "```"]
    return end


def _in_code(line: str) -> str:
    return escape(line.replace("```", "`\u200b`\u200b`"))


def _line(line: str) -> str:
    if not _MARKED.search(line):
        return line
    if _RULE.match(line):
        return "───"
    if heading := _HEADING.match(line):
        words = heading[1].strip()
        unhashed = words.rstrip("#")
        words = (unhashed if unhashed.endswith((" ", "\t")) else words).strip()
        words = words.replace("**", "").replace("__", "")
        return f"*{_inline(words)}*" if words else ""
    quote = _QUOTE.match(line)
    begin, rest = ("> ", line[quote.end() :]) if quote else ("", line)
    if bullet := _BULLET.match(rest):
        begin, rest = f"{begin}{bullet[1]}• ", rest[bullet.end() :]
    return begin + _inline(rest)


def _inline(line: str) -> str:
    """Convert a line: what must not be looked into is held back, then marks become Slack's."""
    held: list[str] = []

    def hold(shown: str) -> str:
        held.append(shown)
        return f"\ue001{len(held) - 1}\ue002"

    def link(match: re.Match[str]) -> str:
        label = _HELD.sub(lambda kept: held[int(kept[1])].strip("`"), escape(match[1].replace("**", "")))
        return hold(f"<{_target(match[2])}|{label}>")

    def address(match: re.Match[str]) -> str:
        return hold(f"<{_target(match[1])}>" if match[1] else escape(match[2]))

    text = _spans(line, hold)
    text = _ADDRESS.sub(address, _LINK.sub(link, text))
    text = escape(text)
    text = _STRIKE.sub(r"~\1~", text)
    text = _BOTH.sub(rf"{_STRONG}_\1_{_STRONG}", text)
    text = _LINES.sub(rf"{_STRONG}\1{_STRONG}", _STARS.sub(rf"{_STRONG}\1{_STRONG}", text))
    text = _STRESS.sub(r"_\1_", text).replace(_STRONG, "*")
    return _HELD.sub(lambda kept: held[int(kept[1])], text)


def _spans(line: str, hold: Callable[[str], str]) -> str:
    """Hold back the code spans of a line: from a run of backticks to the next run of the same length."""
    runs = [(match.start(), match.end()) for match in re.finditer("`+", line)]
    partner: list[int | None] = [None] * len(runs)
    latest: dict[int, int] = {}
    for index in range(len(runs) - 1, -1, -1):
        length = runs[index][1] - runs[index][0]
        partner[index] = latest.get(length)
        latest[length] = index
    pieces: list[str] = []
    done = index = 0
    while index < len(runs):
        other = partner[index]
        if other is None:
            index += 1
            continue
        inner = line[runs[index][1] : runs[other][0]].replace("`", "\u02cb")
        pieces += [line[done : runs[index][0]], hold(f"`{escape(inner.strip() or inner)}`")]
        done = runs[other][1]
        index = other + 1
    return "".join([*pieces, line[done:]])


def _target(url: str) -> str:
    return escape(url.replace("|", "%7C"))


def _spelt(match: re.Match[str]) -> str:
    """Spell out one `<…>`: a mention, a channel, a group, a date or a link."""
    target, _, label = match[1].partition("|")
    if target.startswith(("@", "#")):
        return f"{target[0]}{label or target[1:]}"
    if target.startswith("!"):
        return label or f"@{target[1:].partition('^')[0]}"
    plain = _SAME.sub(r"\1", target)
    if not label or label == target:
        return target.removeprefix("mailto:").removeprefix("tel:")
    return label if label.rstrip("/") == plain else f"[{label}]({target})"


def _entities_only(text: str) -> str:
    """Keep Slack's three entities, and escape every other `&`, so that it is unchanged."""
    return re.sub(r"&(?!(?:amp|lt|gt);)", "&amp;", text)

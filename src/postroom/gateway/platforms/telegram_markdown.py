"""Markdown in Telegram's dialect, which its Bot API calls MarkdownV2.

Every character that could be read as a mark is escaped, so that text stays text. Unsupported elements are
replaced: headings become bold, lists get bullets, tables stay as written, in a block of code.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

_DEEPEST: Final = 60
_RESERVED: Final = re.compile(r"([_*\[\]()~`>#+\-=|{}.!\\])")
_IN_CODE: Final = re.compile(r"([`\\])")
_IN_ADDRESS: Final = re.compile(r"([)\\])")
_SHOWN_AS_LINK: Final = ("http://", "https://", "tg://", "mailto:")
_LANGUAGE: Final = re.compile(r"[\w+#.-]{1,30}")
_ITALIC: Final = "\0"
"""Stands for the mark of italics until all is written: the parser lets no such character through."""


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": _DEEPEST + 10})
    parser.enable(["strikethrough", "table"])
    parser.disable("reference")  # the line with the target of a reference would not be shown
    parser.parse("it puts its rules in order at the first text; later ones may come in several threads")
    return parser


_PARSER: Final = _parser()


def markdown_v2(text: str) -> str | None:
    """Return Markdown in Telegram's dialect; None if it should be sent unchanged.

    That is so if nothing visible would be left, or if it is nested too deeply to be kept whole. Any thread
    may call it; for a long text avoid the event loop's: 4,096 brackets take 0.3 s.
    """
    tokens = _PARSER.parse(text)
    if any(token.level >= _DEEPEST for token in tokens):
        return None
    lines = tuple(re.sub(r"\r\n?", "\n", text).split("\n"))
    written = _Writer(lines=lines).blocks(SyntaxTreeNode(tokens).children)
    # Two italics side by side would read as one underline: an empty bold between keeps them apart.
    shown = written.replace(_ITALIC * 2, "_**_").replace(_ITALIC, "_")
    return shown if shown.strip("`>\n ") else None


def escaped(text: str) -> str:
    """Return text in which nothing is a mark."""
    return _RESERVED.sub(r"\\\1", text)


def _code(text: str) -> str:
    return f"`{_backslashed(text)}`" if text else ""


def _backslashed(text: str, marks: re.Pattern[str] = _IN_CODE) -> str:
    return marks.sub(r"\\\1", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    """Writes blocks; what surrounds them decides which marks may still be set."""

    lines: Sequence[str]
    bold: bool = False
    italic: bool = False
    struck: bool = False
    quoted: bool = False
    listed: bool = False

    def blocks(self, nodes: Iterable[SyntaxTreeNode]) -> str:
        """Write blocks one below the other, with a blank line between them if the source had one."""
        written = ""
        for node in nodes:
            shown = self.block(node)
            if shown and written:
                written += "\n\n" if self._stands_apart(node) else "\n"
            written += shown
        return written

    def _stands_apart(self, node: SyntaxTreeNode) -> bool:
        before = node.map[0] - 1 if node.map else -1
        return 0 <= before < len(self.lines) and not self.lines[before].lstrip("> ").strip()

    def block(self, node: SyntaxTreeNode) -> str:
        """Write one block."""
        match node.type:
            case "heading":
                return self._marked("*", replace(self, bold=True).inline(node), set_already=self.bold)
            case "fence" | "code_block":
                return self._fenced(node.content, node.info)
            case "table":
                first, last = node.map or (0, 0)
                return self._fenced("\n".join(self.lines[first:last]), "")
            case "blockquote":
                return self._quote(node)
            case "bullet_list" | "ordered_list":
                return "\n".join(self._item(item) for item in node.children)
            case "hr":
                return "———"
            case _:
                return self.inline(node)

    def _fenced(self, code: str, info: str) -> str:
        if self.quoted:  # a block of code would end the quote
            return "\n".join(_code(line) for line in code.rstrip("\n").split("\n"))
        language = _LANGUAGE.match(info)
        body = _backslashed(code.rstrip("\n"))
        return f"```{language[0] if language else ''}\n{body}\n```"

    def _quote(self, node: SyntaxTreeNode) -> str:
        inner = replace(self, quoted=True).blocks(node.children)
        if self.quoted:
            return inner
        mark = "\\> " if self.listed else ">"  # only at the beginning of a line is it the platform's mark
        return "\n".join(f"{mark}{line}" for line in inner.split("\n"))

    def _item(self, node: SyntaxTreeNode) -> str:
        mark = f"{escaped(node.info + '.')} " if node.info else "• "
        inside = replace(self, listed=True)
        parts: list[str] = []
        for child in node.children:
            shown = inside.block(child)
            indented = shown if shown.startswith("```") else shown.replace("\n", "\n  ")
            parts.append(indented if not parts or shown.startswith("```") else f"  {indented}")
        begins_with_code = bool(parts) and parts[0].startswith("```")
        return mark + ("\n" if begins_with_code else "") + "\n".join(parts)

    def _marked(self, mark: str, inner: str, *, set_already: bool) -> str:
        return inner if set_already or not inner.strip() else f"{mark}{inner}{mark}"

    def inline(self, node: SyntaxTreeNode) -> str:
        """Write what stands within a block."""
        return "".join(self._span(child) for child in node.children)

    def _span(self, node: SyntaxTreeNode) -> str:
        match node.type:
            case "text":
                return escaped(node.content)
            case "softbreak" | "hardbreak":
                return "\n"
            case "code_inline":
                return _code(node.content)
            case "strong":
                return self._marked("*", replace(self, bold=True).inline(node), set_already=self.bold)
            case "em":
                return self._marked(_ITALIC, replace(self, italic=True).inline(node), set_already=self.italic)
            case "s":
                return self._marked("~", replace(self, struck=True).inline(node), set_already=self.struck)
            case "link":
                return self._link(self.inline(node), str(node.attrs.get("href", "")))
            case "image":
                return self._link(escaped(node.content), str(node.attrs.get("src", "")))
            case _:
                return self.inline(node) if node.children else escaped(node.content)

    def _link(self, label: str, address: str) -> str:
        if not label.strip():
            return escaped(address)
        if not address.lower().startswith(_SHOWN_AS_LINK):
            return f"{label} {escaped(f'({address})')}" if address else label
        return f"[{label}]({_backslashed(address, _IN_ADDRESS)})"

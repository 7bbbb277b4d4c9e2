"""Makes text from other authors safe to show in prompts, hook output, mail and terminals.

A reader of a prompt recognizes the origin of a message by its lines, and the text of a message by two
markers. Therefore a field is one line (`one_line`), a field within a sentence is in quotes that it cannot
close (`quoted`), and a text is between markers that it does not contain (`between`, `in_code_fence`). The
results contain nothing that controls a terminal, changes the writing direction, or is visible only to a
model.
"""

import re
from typing import Final

MAX_QUOTED_LENGTH: Final = 64

_STEERS: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u17b4\u17b5\u2028-\u202e\u2066-\u2069\u3164\ud800-\udfff\uffa0"
    "\U000e0000-\U000e007f"
)
"""Matches control characters, line breaks except the newline, direction marks, surrogates, invisible
characters, and the tag alphabet, which no font displays.
"""
_STRAY_SELECTOR: Final = (
    "(?<![#*0-9\xa9\xae\u203c-\u3299\U0001f000-\U0001faff])[\ufe0e\ufe0f]"
    "|(?<![\u2200-\u22ff\u2a00-\u2aff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"
    "[\ufe00-\ufe0d\U000e0100-\U000e01ef]"
)
"""Matches variation selectors after a character that has only one form, that is, not an emoji, an operator or
an ideograph. The 256 selectors could spell a text that no font displays.
"""
_HIDDEN: Final = (
    "\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u180b-\u180f\u200b\u200e\u200f\u2060-\u206f\u2800\ufeff"
    "\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
)
"""Matches other invisible characters, except the two joiners, which words and emoji need."""
_IN_TEXT: Final = re.compile(f"[{_STEERS}]|{_STRAY_SELECTOR}")
_IN_LINE: Final = re.compile(f"[{_STEERS}{_HIDDEN}]|{_STRAY_SELECTOR}")
_UNLIKE: Final = "\xa0\u1680\u2000-\u200d\u202f\u205f\u3000\ufe00-\ufe0f\U000e0000-\U000e0fff"
"""Joiners, all variation selectors, and spaces that look like an ordinary space."""
_LOOKS_LIKE_CODE: Final = r"\\(?=x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8})"
_IN_EXACT: Final = re.compile(f"[{_STEERS}{_HIDDEN}{_UNLIKE}]|{_LOOKS_LIKE_CODE}")
_FIRST_WORD: Final = re.compile(r"[a-z]+(?=[ ,:;]|$)")
_BLANKS: Final = re.compile(r"[\n\t]")
_BACKTICKS: Final = re.compile(r"`+")
_OPENING: Final = (
    "[\uff3b\u2045\u2772\u27e6\u298b\u298d\u298f\u2997\u3010\u3014\u3016\u3018\u301a\ufe39\ufe3b\ufe47\ufe5d"
)
"""Square brackets, and characters that look like them."""
_CLOSING: Final = (
    "]\uff3d\u2046\u2773\u27e7\u298c\u298e\u2990\u2998\u3011\u3015\u3017\u3019\u301b\ufe3a\ufe3c\ufe48\ufe5e"
)
_BRACKETS: Final = str.maketrans(_OPENING + _CLOSING, "(" * len(_OPENING) + ")" * len(_CLOSING))
_BLANK: Final = "\u115f\u1160\u2800"
"""Characters that look like a space."""
_SPEAKS: Final = re.compile(rf"[\s{_BLANK}\u200b-\u200f\u2060-\u206f\ufeff]*[\{_OPENING}]")
_QUOTES: Final = str.maketrans({'"': "'", "`": "'", "<": "(", ">": ")"})

_ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]*+(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*+[0-~]"
)
"""Matches terminal escape sequences for colours, titles and cursor movements, in 7 and 8 bits.

A title sequence ends at the next control character, so that no character is scanned twice.
"""
_UNFINISHED: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b\n]*)?\Z")
"""Matches the start of an escape sequence at the end of a text."""
_LINE_ENDS: Final = re.compile(r"\r\n?")
_UNSEEN: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def _escape_character(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def readable(text: str) -> str:
    """Return a text with each control or hidden character replaced by the character's code.

    Line breaks are kept.
    """
    return _IN_TEXT.sub(_escape_character, text.replace("\r\n", "\n"))


def is_blank(text: str) -> bool:
    """Return whether a text consists only of spaces and invisible characters."""
    return not _IN_EXACT.sub("", text).strip()


def one_line(text: str) -> str:
    """Return a text as one line, with hidden characters shown as codes."""
    return _IN_LINE.sub(_escape_character, _BLANKS.sub(" ", text.replace("\r\n", "\n")))


def exact(text: str, *, is_one_line: bool = False) -> str:
    """Return a text with each invisible or ambiguous character replaced by the character's code.

    Two texts that look alike but differ give different results. Newlines and tabs are kept, unless
    `is_one_line` is set.
    """
    shown = _IN_EXACT.sub(_escape_character, text)
    return _BLANKS.sub(_escape_character, shown) if is_one_line else shown


def quoted(text: str, *, longest: int = MAX_QUOTED_LENGTH) -> str:
    """Return a text as one line in quotes, truncated to `longest` characters."""
    plain = " ".join(one_line(text).split()).translate(_QUOTES)
    return f'"{plain if len(plain) <= longest else plain[: longest - 1] + "…"}"'


def between(nonce: str, text: str) -> str:
    """Return a text between two `[nonce]` markers.

    Markers inside the text are removed.
    """
    mark, inner = f"[{nonce}]", readable(text)
    while mark in inner:  # removing a marker can create another one from the text around it
        inner = inner.replace(mark, "")
    return f"{mark}\n{inner}\n{mark}"


def in_code_fence(text: str) -> str:
    """Return a text in a Markdown code fence that the text cannot close."""
    inner = readable(text)
    fence = "`" * max(3, *(len(run) + 1 for run in _BACKTICKS.findall(inner)), 0)
    return f"{fence}\n{inner}\n{fence}"


def said_by(name: str, text: str) -> str:
    """Return a group chat text with the name of the author in front.

    No line of the text can imitate another author.
    """
    first, *more = readable(text).split("\n")
    rest = (f"\\{line}" if _SPEAKS.match(line) else line for line in more)
    return "\n".join([f"[{one_line(name).translate(_BRACKETS)}] {first}", *rest])


def without_escapes(text: str) -> str:
    """Return a text without characters that control a terminal or change the writing direction."""
    return _UNSEEN.sub("", _LINE_ENDS.sub("\n", _ESCAPES.sub("", text)))


def strip_partial_escape(text: str) -> str:
    """Return a text without an incomplete escape sequence at the end."""
    return _UNFINISHED.sub("", text)


def end_of(text: str, most: int, *, begins_within: bool = False) -> str:
    """Return the last lines of a text, at most `most` characters.

    If `begins_within` is true, the text starts in the middle of a line, and that line is dropped.
    """
    if len(text) <= most and not begins_within:
        return text
    kept_text = text[-most:]
    if len(text) > most and text[-most - 1] == "\n":
        return kept_text
    return kept_text.partition("\n")[2] or kept_text


def sentence(text: str, *names: str) -> str:
    """Return an error message as a sentence with a capital first letter.

    Words from `names`, and words with a capital inside, stay unchanged.
    """
    first = _FIRST_WORD.match(text)
    if first is None or first[0] in names:
        return text
    return text[0].upper() + text[1:]

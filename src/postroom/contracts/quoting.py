"""What others chose, as it may stand in a prompt, in a hook's line, in mail and on a terminal.

Whoever reads a prompt goes by its lines: which says where a message comes from, and what stands between two
marks. So a field is one line (`one_line`), a field inside a sentence is in quotes that it cannot end
(`quoted`), and a text stands between marks that are not in it (`between`, `in_code_fence`). Nothing in them
steers a terminal, turns the direction of writing, or is read by a model and seen by nobody.
"""

import re
from typing import Final

LONGEST_QUOTED: Final = 64

_STEERS: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u17b4\u17b5\u2028-\u202e\u2066-\u2069\u3164\ud800-\udfff\uffa0"
    "\U000e0000-\U000e007f"
)
"""Control characters, breaks of lines other than a newline, what turns the direction of what follows, halves
of characters, characters without a shape, and the alphabet that no font shows."""
_STRAY_SELECTOR: Final = (
    "(?<![#*0-9\xa9\xae\u203c-\u3299\U0001f000-\U0001faff])[\ufe0e\ufe0f]"
    "|(?<![\u2200-\u22ff\u2a00-\u2aff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"
    "[\ufe00-\ufe0d\U000e0100-\U000e01ef]"
)
"""What chooses among shapes behind a character that has only one: not a picture, an operator or an ideograph.
These, of which there are 256, would spell a text that no font shows."""
_HIDDEN: Final = (
    "\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u180b-\u180f\u200b\u200e\u200f\u2060-\u206f\u2800\ufeff"
    "\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
)
"""What else has no shape. The two joiners stay: words and pictures are spelt with them."""
_IN_TEXT: Final = re.compile(f"[{_STEERS}]|{_STRAY_SELECTOR}")
_IN_LINE: Final = re.compile(f"[{_STEERS}{_HIDDEN}]|{_STRAY_SELECTOR}")
_FIRST_WORD: Final = re.compile(r"[a-z]+(?=[ ,:;]|$)")
_BLANKS: Final = re.compile(r"[\n\t]")
_BACKTICKS: Final = re.compile(r"`+")
_OPENING: Final = (
    "[\uff3b\u2045\u2772\u27e6\u298b\u298d\u298f\u2997\u3010\u3014\u3016\u3018\u301a\ufe39\ufe3b\ufe47\ufe5d"
)
"""Square brackets, and what looks like them."""
_CLOSING: Final = (
    "]\uff3d\u2046\u2773\u27e7\u298c\u298e\u2990\u2998\u3011\u3015\u3017\u3019\u301b\ufe3a\ufe3c\ufe48\ufe5e"
)
_BRACKETS: Final = str.maketrans(_OPENING + _CLOSING, "(" * len(_OPENING) + ")" * len(_CLOSING))
_BLANK: Final = "\u115f\u1160\u2800"
"""Looks like a blank and is none."""
_SPEAKS: Final = re.compile(rf"[\s{_BLANK}\u200b-\u200f\u2060-\u206f\ufeff]*[\{_OPENING}]")
_QUOTES: Final = str.maketrans({'"': "'", "`": "'", "<": "(", ">": ")"})

_ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]*+(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*+[0-~]"
)
"""What is meant for a terminal, in 7 and in 8 bits: colours, titles, moves of the cursor.

A text of a title ends at the next control character, so that nothing is looked at again and again."""
_UNFINISHED: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b\n]*)?\Z")
"""An escape sequence of which more will come."""
_LINE_ENDS: Final = re.compile(r"\r\n?")
_UNSEEN: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def _named(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def readable(text: str) -> str:
    """Return a text in which what steers a terminal or hides is named by its code; its lines stay."""
    return _IN_TEXT.sub(_named, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return a text as one line in which nothing is hidden; newlines and tabs become blanks."""
    return _IN_LINE.sub(_named, _BLANKS.sub(" ", text.replace("\r\n", "\n")))


def quoted(text: str, *, longest: int = LONGEST_QUOTED) -> str:
    """Return a text on one line in quotes that it cannot end, cut off behind `longest` characters."""
    plain = " ".join(one_line(text).split()).translate(_QUOTES)
    return f'"{plain if len(plain) <= longest else plain[: longest - 1] + "…"}"'


def between(nonce: str, text: str) -> str:
    """Return a text between two marks `[nonce]`, which are not in it."""
    mark, inner = f"[{nonce}]", readable(text)
    while mark in inner:  # what is left when one was taken out may be one again
        inner = inner.replace(mark, "")
    return f"{mark}\n{inner}\n{mark}"


def in_code_fence(text: str) -> str:
    """Return a text between fences of Markdown that are not in it."""
    inner = readable(text)
    fence = "`" * max(3, *(len(run) + 1 for run in _BACKTICKS.findall(inner)), 0)
    return f"{fence}\n{inner}\n{fence}"


def said_by(name: str, text: str) -> str:
    """Return what one of several people in a chat said, behind a name; no line looks like another's."""
    first, *more = readable(text).split("\n")
    rest = (f"\\{line}" if _SPEAKS.match(line) else line for line in more)
    return "\n".join([f"[{one_line(name).translate(_BRACKETS)}] {first}", *rest])


def without_escapes(text: str) -> str:
    """Return a text as it can be mailed: without what steers a terminal or the direction of writing.

    A carriage return is the end of a line, so that what would write over the line before stands below it.
    """
    return _UNSEEN.sub("", _LINE_ENDS.sub("\n", _ESCAPES.sub("", text)))


def without_unfinished(text: str) -> str:
    """Return a text of which more will come, without the beginning of what is meant for a terminal."""
    return _UNFINISHED.sub("", text)


def end_of(text: str, most: int, *, begins_within: bool = False) -> str:
    """Return the last `most` characters of a text, from the beginning of a line on where there is one.

    A text that `begins_within` a line has lost that line's beginning, however short it is.
    """
    if len(text) <= most and not begins_within:
        return text
    kept = text[-most:]
    if len(text) > most and text[-most - 1] == "\n":
        return kept
    return kept.partition("\n")[2] or kept


def sentence(text: str, *names: str) -> str:
    """Return what an error says as a sentence of a page: it begins big, unless it begins with one of `names`.

    At the command line and in JSON it stands behind a colon, where it begins small. A word with anything
    but small letters in it, such as the name of a file, is left as it is.
    """
    first = _FIRST_WORD.match(text)
    if first is None or first[0] in names:
        return text
    return text[0].upper() + text[1:]

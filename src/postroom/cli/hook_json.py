"""JSON for hooks: the C parts that `json` is made of, without the regular expressions that it loads as well.

Loading `json` takes as long as half of starting Python. Where its parts are not found, `json` itself is used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_SPACE = " \t\n\r"


class _Plain:
    """What the scanner is to make of what it finds."""

    strict = False
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: Mapping[str, str] = {}


def read(raw: bytes) -> object:
    """Return what a JSON document says.

    Raises:
        ValueError: it is none, or not UTF-8.
        RecursionError: it nests too deep.
    """
    text = raw.decode("utf-8")
    try:
        from _json import make_scanner
    except ImportError:
        import json

        return json.loads(text)
    scan = make_scanner(_Plain)  # type: ignore[arg-type]  # it reads these attributes of anything
    try:
        found, end = scan(text, len(text) - len(text.lstrip(_SPACE)))
    except StopIteration as stop:
        raise ValueError("that is no JSON") from stop
    if text[end:].strip(_SPACE):
        raise ValueError("something follows the JSON")
    return found


def written(value: object) -> str:
    """Return plain data as JSON in ASCII: texts, truth values, lists and mappings of them."""
    try:
        from _json import encode_basestring_ascii as quoted
    except ImportError:
        import json

        quoted = json.dumps
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(name)}: {written(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    raise TypeError(type(value).__name__)

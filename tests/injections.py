"""Reads the corpus of texts that were tried to forge where a message comes from."""

import json
from pathlib import Path
from typing import Final

FIELDS: Final[tuple[str, ...]] = tuple(
    json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))["fields"]
)
STEERING: Final = frozenset(
    [*map(chr, range(0x0A)), *map(chr, range(0x0B, 0x20)), *map(chr, range(0x7F, 0xA0))]
    + [chr(code) for code in (*range(0x2028, 0x202F), *range(0x2066, 0x206A), *range(0xE0000, 0xE0080))]
    + [chr(code) for code in (0x17B4, 0x17B5, 0x3164, 0xFFA0, *range(0xE0100, 0xE01F0))]
) - {"\t"}
"""Characters that no prompt, no mail and no terminal gets from postroom."""


def forged(text: str) -> set[str]:
    """Return what steers in a text."""
    return STEERING & set(text)

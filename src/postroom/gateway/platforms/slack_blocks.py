"""Messages as Block Kit: cards with buttons, and edits, which take less text than a message does."""

from typing import Any, Final

from postroom.gateway.capabilities import LengthUnit
from postroom.gateway.events import Button, Card
from postroom.gateway.platforms.slack_text import escape, to_mrkdwn
from postroom.gateway.platforms.slack_wire import ACTION
from postroom.gateway.splitting import split

LONGEST_TEXT: Final = 40_000
"""Characters beyond which Slack cuts a message off without a word."""
LONGEST_EDIT: Final = 4_000
"""Bytes of text in an edit; what is longer goes into blocks."""
LONGEST_BLOCKS: Final = 12_000
"""Characters in all blocks together; Slack takes some hundred more, and says so nowhere."""
LONGEST_SECTION: Final = 3_000
PIECE: Final = 2_500
"""Characters of Markdown that go into one section, where not too many become entities."""
LONGEST_LABEL: Final = 75
BUTTONS_A_ROW: Final = 25
_SUMMARY: Final = 500


def card_blocks(card: Card) -> list[dict[str, Any]]:
    """Return a card: its text, then its buttons."""
    blocks = _sections(card.text)
    for first in range(0, len(card.buttons), BUTTONS_A_ROW):
        row = card.buttons[first : first + BUTTONS_A_ROW]
        blocks.append(
            {"type": "actions", "elements": [_button(first + at, one) for at, one in enumerate(row)]}
        )
    return blocks


def card_body(card: Card) -> dict[str, Any]:
    """Return what a card is sent as; the text is for notices and for those who read no blocks."""
    return {"text": _short(card.text), "blocks": card_blocks(card)}


def edit_body(markdown: str) -> dict[str, Any]:
    """Return what a message is replaced with: as text without blocks where it fits, else in blocks."""
    text = to_mrkdwn(markdown)
    if len(text.encode()) <= LONGEST_EDIT:
        return {"text": text, "blocks": []}
    return {"text": _short(markdown), "blocks": _sections(markdown)}


def blocks_fit(blocks: list[dict[str, Any]]) -> bool:
    """Say whether Slack takes so much in blocks."""
    return sum(len(block["text"]["text"]) for block in blocks if block["type"] == "section") <= LONGEST_BLOCKS


def _short(markdown: str) -> str:
    text = to_mrkdwn(markdown)
    return text if len(text.encode()) <= LONGEST_EDIT else f"{escape(markdown[:_SUMMARY])}…"


def _button(index: int, button: Button) -> dict[str, Any]:
    label = {"type": "plain_text", "text": button.label[:LONGEST_LABEL] or "…"}
    return {"type": "button", "action_id": f"{ACTION}{index}", "text": label, "value": button.value}


def _sections(markdown: str) -> list[dict[str, Any]]:
    """Return a text in sections that are always shown whole; fences go on in the next one."""
    pieces = split(markdown, limit=PIECE, unit=LengthUnit.CHARACTERS)
    texts = [text for piece in pieces for text in _within_limit(to_mrkdwn(piece))]
    return [{"type": "section", "expand": True, "text": {"type": "mrkdwn", "text": text}} for text in texts]


def _within_limit(text: str) -> list[str]:
    """Cut what became too long by its entities: where a line ends, and never within an entity."""
    pieces: list[str] = []
    while len(text) > LONGEST_SECTION:
        cut = text.rfind("\n", 1, LONGEST_SECTION)
        if cut < 0:
            entity = text.rfind("&", LONGEST_SECTION - 5, LONGEST_SECTION)
            cut = entity if entity > 0 else LONGEST_SECTION
        pieces.append(text[:cut])
        text = text[cut:].removeprefix("\n")
    return [piece for piece in (*pieces, text) if piece.strip()]

"""What a run that waits lets go on: an answer to its questions, and no other message.

asked by a tool (`ask_person`) ─▶ a decision, or a reply to the message that asks
a permission, a budget ─────────▶ a decision alone
"""

from typing import Final

from postroom.contracts.runs import RunRecord

ASK: Final = "ask_person"
_SHOWN: Final = 200
"""Characters of a question that are shown to those whose messages wait for its answer."""


def takes_reply(run: RunRecord) -> bool:
    """Say whether a run waits for nothing but what a message in reply may tell it."""
    tickets = run.open_tickets
    return bool(tickets) and all(one.tool_name == ASK for one in tickets)


def why_held(name: str, run: RunRecord) -> str:
    """Return why messages to an agent wait while a run of it does."""
    tickets = run.open_tickets
    if not tickets:
        return f"{name} is about to go on with what it was told"
    asked = tickets[0].reason
    shown = asked if len(asked) <= _SHOWN else f"{asked[:_SHOWN]}…"
    return f"{name} has an open question: {shown}"

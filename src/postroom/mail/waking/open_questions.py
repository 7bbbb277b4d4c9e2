"""What a run that waits lets go on: an answer to its questions, and no other message.

asked by a tool (`ask_person`) ─▶ a decision, or a reply to the message that asks, by who received it
a permission, a budget ─────────▶ a decision alone
"""

from collections.abc import Sequence
from typing import Final

from postroom.contracts.clock import iso
from postroom.contracts.mail import Message, Recipient
from postroom.contracts.runs import RunRecord
from postroom.contracts.store import RecordReads
from postroom.mail.waking.prompts import agent_thread

ASK: Final = "ask_person"
_SHOWN: Final = 200
"""Characters of a question that are shown to those whose messages wait for its answer."""


def takes_reply(run: RunRecord) -> bool:
    """Say whether a run waits for nothing but what a message in reply may tell it."""
    tickets = run.open_tickets
    return bool(tickets) and all(one.tool_name == ASK for one in tickets)


def answers(tx: RecordReads, message: Message, run: RunRecord) -> bool:
    """Say whether a message lets a run go on that waits: who was asked replies to what it has asked with.

    That is the last message that tells of the run: what it asked before has its answer.
    """
    asked = message.reply_to
    return (
        asked is not None
        and takes_reply(run)
        and tx.answering_run(asked) == run.run_id
        and tx.tells_last(asked)
        and any(one.agent_id == message.sender_id for one in tx.recipients([asked])[asked])
    )


def held(tx: RecordReads, message: Message, readers: Sequence[Recipient]) -> dict[int, str]:
    """Return for which agents a message is to wait, by id, and why, as its sender is told.

    What an agent asks is for those whom it asks, and for the operator.
    """
    threads = {one.agent_id: agent_thread(one.project_slug, one.name) for one in readers}
    waiting = tx.waiting_runs(sorted(threads.values())) if threads else {}
    found: dict[int, str] = {}
    for one in readers:
        run = waiting.get(threads[one.agent_id])
        if run is not None and run.open_tickets and not answers(tx, message, run):
            found[one.agent_id] = (
                f"{one.name} has an open question since {iso(run.open_tickets[0].updated_at)}"
            )
    return found


def why_held(name: str, run: RunRecord) -> str:
    """Return why messages to an agent wait while a run of it does."""
    tickets = run.open_tickets
    if not tickets:
        return f"{name} is about to go on with what it was told"
    asked = tickets[0].question
    shown = asked if len(asked) <= _SHOWN else f"{asked[:_SHOWN]}…"
    return f"{name} has an open question: {shown}"

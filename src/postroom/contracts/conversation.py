"""Which of a thread's messages a run sees, and in which order."""

from collections.abc import Sequence

from postroom.contracts.messages import Message
from postroom.contracts.runs import RunRecord


def conversation_of(
    run_id: str, messages: Sequence[Message], runs: Sequence[RunRecord]
) -> tuple[Message, ...]:
    """Return a thread's committed messages as one of its runs sees them.

    Other runs that are still to be executed are left out, with what they were asked and have said. The others
    follow one another as they began, so that an answer stands behind its question whenever that was
    enqueued; the run itself comes last. A message of no run stays behind the message before it.
    """
    places = {message.id: place for place, message in enumerate(messages)}
    ends = {_said_by(message): place for place, message in enumerate(messages)}

    def turn(run: RunRecord) -> tuple[bool, float, int]:
        ids = run.input.trigger_message_ids if run.input is not None else ()
        began = run.started_at if run.started_at is not None else run.finished_at
        end = max(ends.get(run.run_id, -1), *(places.get(id, -1) for id in ids), -1)
        return run.run_id == run_id, began if began is not None else float("inf"), end

    turns: dict[str, int] = {}
    asked_by: dict[str, str] = {}
    for place, run in enumerate(sorted(runs, key=turn)):
        turns[run.run_id] = place
        if run.input is not None:  # of a message that was replayed, the last run
            asked_by.update(dict.fromkeys(run.input.trigger_message_ids, run.run_id))
    hidden = {run.run_id for run in runs if run.is_open and run.activation and run.run_id != run_id}
    seen: list[tuple[int, Message]] = []
    latest = -1
    for message in messages:
        said_by = _said_by(message)
        run_of = said_by if said_by in turns else asked_by.get(message.id or "")
        if run_of in hidden:
            continue
        if run_of is not None:
            latest = turns[run_of]
        seen.append((latest, message))
    return tuple(message for _, message in sorted(seen, key=lambda entry: entry[0]))


def _said_by(message: Message) -> str | None:
    return message.metadata.run_id if message.metadata else None

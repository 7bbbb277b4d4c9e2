"""The messages of a thread that a run sees, and their order."""

from collections.abc import Sequence

from postroom.contracts.errors import ContentFiltered, ContextOverflow, RequestRefused
from postroom.contracts.messages import Message
from postroom.contracts.records import Record
from postroom.contracts.runs import RunRecord, TerminationReason

_REFUSALS = frozenset({ContentFiltered.code, ContextOverflow.code, RequestRefused.code})
"""Codes of errors caused by the run's input, which would fail again in every later run."""


def is_set_aside(termination: TerminationReason | None) -> bool:
    """Return whether later runs do not see a run that ended in this way."""
    return termination is not None and termination.detail in _REFUSALS


class Summary(Record, frozen=True, kw_only=True):
    """The text that a model reads in place of a conversation's older messages.

    Each summary extends the last one.
    """

    number: int
    """Number of the summary in its thread, from 1."""
    text: str
    left_out: int = 0
    """Number of messages that are neither shown nor summarized, because the model could not do it."""
    model: str = ""
    window: int | None = None
    """The context of that model in tokens, if its endpoint has reported it."""
    since: int = 0
    """Ended runs that were last written before this instant are summarized whole, or hidden."""


class SummaryDraft(Record, frozen=True, kw_only=True):
    """A summary to store, with the messages that it covers beyond the summary that it extends."""

    summary: Summary
    covers: tuple[str, ...] = ()
    """The ids of the summarized messages."""
    hides: tuple[str, ...] = ()
    """The ids of omitted messages: a later run sees them only if it starts on them again."""


class Turn(Record, frozen=True, kw_only=True):
    """A run with its messages and its place in the order: when it started, or ended without a start."""

    run_id: str
    asked: tuple[str, ...] = ()
    """The ids of its input messages."""
    began: int | None = None
    is_unbegun: bool = False
    """Whether it ended without a start; at the same instant it sorts after runs that started."""
    created_at: int = 0
    takes_back: tuple[str, ...] = ()
    """The runs that it rolled back, which no run sees from then on."""
    is_set_aside: bool = False
    """Whether the model refused its input."""
    is_to_come: bool = False
    """Whether it is queued, waiting or active."""

    @classmethod
    def of(cls, run: RunRecord) -> "Turn":
        """Return the turn of a run."""
        return cls(
            run_id=run.run_id,
            asked=run.input.trigger_message_ids if run.input is not None else (),
            began=run.started_at if run.started_at is not None else run.finished_at,
            is_unbegun=run.started_at is None,
            created_at=run.created_at,
            takes_back=run.activation.options.without_runs if run.activation is not None else (),
            is_set_aside=is_set_aside(run.termination),
            is_to_come=run.is_open and run.activation is not None,
        )


class Conversation(Record, frozen=True, kw_only=True):
    """A run's view of its thread: the newest valid summary and the messages after it, in order."""

    messages: tuple[Message, ...]
    summary: Summary | None = None
    hidden: tuple[str, ...] = ()
    """The ids of messages after the summary that a run sees only if it starts on them again."""
    turns: tuple[Turn, ...] = ()
    """The runs of these messages, and the runs that have not ended."""

    def since(self, kept: frozenset[str], run_id: str) -> int:
        """Return the creation time of the oldest run that a summary of all but `kept` does not cover."""
        said = {_said_by(message) for message in self.messages if message.id in kept}
        return min(
            (
                turn.created_at
                for turn in self.turns
                if turn.is_to_come
                or turn.run_id in said
                or turn.run_id == run_id
                or not kept.isdisjoint(turn.asked)
            ),
            default=0,
        )


def conversation_of(run_id: str, messages: Sequence[Message], turns: Sequence[Turn]) -> Conversation:
    """Return a thread's committed messages as one of its runs sees them.

    Left out, with input and output, are other runs that have not ended, runs that were rolled back, and runs
    whose input the model refused. The remaining runs are ordered by their start, so that an answer follows
    its question whenever that was enqueued; the run itself comes last. A message of no run stays after the
    message that precedes it.
    """
    places = {message.id: place for place, message in enumerate(messages)}
    ends = {_said_by(message): place for place, message in enumerate(messages)}

    def order(turn: Turn) -> tuple[bool, float, bool, int]:
        end = max(ends.get(turn.run_id, -1), *(places.get(id, -1) for id in turn.asked), -1)
        began = turn.began if turn.began is not None else float("inf")
        return turn.run_id == run_id, began, turn.is_unbegun, end

    place_of: dict[str, int] = {}
    asked_by: dict[str, str] = {}
    for place, turn in enumerate(sorted(turns, key=order)):
        place_of[turn.run_id] = place
        asked_by.update(
            dict.fromkeys(turn.asked, turn.run_id)
        )  # of a message that was replayed, the last run
    gone = {turn.run_id for turn in turns if turn.is_set_aside} - {run_id}
    gone.update(run for turn in turns for run in turn.takes_back)
    to_come = {turn.run_id for turn in turns if turn.is_to_come} - {run_id}
    seen: list[tuple[int, Message]] = []
    hidden: list[str] = []
    latest = -1
    for message in messages:
        said_by = _said_by(message)
        run_of = said_by if said_by in place_of else asked_by.get(message.id or "")
        if run_of in gone:
            hidden.append(message.id or "")
        elif run_of not in to_come:
            latest = latest if run_of is None else place_of[run_of]
            seen.append((latest, message))
    ordered = tuple(message for _, message in sorted(seen, key=lambda entry: entry[0]))
    return Conversation(messages=ordered, hidden=tuple(hidden), turns=tuple(turns))


def _said_by(message: Message) -> str | None:
    return message.metadata.run_id if message.metadata else None

"""Which of a thread's messages a run sees, and in which order."""

from collections.abc import Sequence

from postroom.contracts.errors import ContentFiltered, ContextOverflow, RequestRefused
from postroom.contracts.messages import Message
from postroom.contracts.records import Record
from postroom.contracts.runs import RunRecord, TerminationReason

_REFUSALS = frozenset({ContentFiltered.code, ContextOverflow.code, RequestRefused.code})
"""Codes of errors that are about what the run was asked: in every later run it would be refused again."""


def is_set_aside(termination: TerminationReason | None) -> bool:
    """Say whether a run that ended so is kept, and shown to no later run."""
    return termination is not None and termination.detail in _REFUSALS


class Summary(Record, frozen=True, kw_only=True):
    """What a model reads instead of a conversation's older messages; each goes on from the one before."""

    number: int
    """Counts a thread's summaries from 1."""
    text: str
    left_out: int = 0
    """How many messages are neither shown nor summed up: the model could not do it."""
    model: str = ""
    window: int | None = None
    """How many tokens that model takes, as far as its endpoint has said so."""
    since: int = 0
    """Runs that are over and were last written before are summed up whole, or hidden."""


class SummaryDraft(Record, frozen=True, kw_only=True):
    """A summary to be stored, with all that it stands for beyond the one that it goes on from."""

    summary: Summary
    covers: tuple[str, ...] = ()
    """The ids of the messages that it sums up."""
    hides: tuple[str, ...] = ()
    """The ids of messages that it passes over: no later run sees them, unless it is begun on them again."""


class Turn(Record, frozen=True, kw_only=True):
    """What a conversation is ordered by: a run, its messages, and when it began, or ended unbegun."""

    run_id: str
    asked: tuple[str, ...] = ()
    """The ids of its messages."""
    began: int | None = None
    is_unbegun: bool = False
    """Whether it has ended without beginning: of those of one instant it comes behind those that began."""
    created_at: int = 0
    takes_back: tuple[str, ...] = ()
    """The runs that it took back: nobody sees them from then on."""
    is_set_aside: bool = False
    """Whether the model refused what it was asked."""
    is_to_come: bool = False
    """Whether it is still to be executed, or is at work."""

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
    """What a run sees of its thread: the newest summary that holds, and the messages behind it, in order."""

    messages: tuple[Message, ...]
    summary: Summary | None = None
    hidden: tuple[str, ...] = ()
    """The ids of messages behind the summary that no run sees, unless it is begun on them again."""
    turns: tuple[Turn, ...] = ()
    """The runs whose messages these are, and those that are still to be executed."""

    def since(self, kept: frozenset[str], run_id: str) -> int:
        """Return from when on a run is to be looked at by who reads on from a summary of all but `kept`."""
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

    Other runs that are still to be executed, those that were taken back, and those whose messages the model
    refused are left out, with what they were asked and have said. The others
    follow one another as they began, so that an answer stands behind its question whenever that was
    enqueued; the run itself comes last. A message of no run stays behind the message before it.
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

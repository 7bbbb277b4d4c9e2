"""What the end of a chat's run causes: an answer to be delivered, or a question to be asked.

The rows are stored in the commit that ends the run. Nothing is looked up here: who delivers a row is read off
the thread's name, where it goes is looked up by whoever delivers it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from json import dumps
from urllib.parse import quote, unquote

from postroom.contracts.chat import CHAT_LANE, CHAT_THREAD, line_id_of
from postroom.contracts.messages import Json
from postroom.contracts.outbox import OutboxDraft, OutboxMessage
from postroom.contracts.runs import RunRecord, RunStatus, RunWaitingTicket, TerminationKind, WaitingReason
from postroom.gateway import wording

MOST_CLAIMS = 1_000_000
"""How often a reply is tried, and for how long, is decided by its delivery."""


class ReplyKind(StrEnum):
    """What is to be done in the chat."""

    ANSWER = "answer"
    NOTICE = "notice"
    QUESTION = "question"
    CARD = "card"
    """A question that was asked has its answer: its card is to show that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Something a run waits to be told; `number` is what people call it by."""

    number: str
    run_id: str
    call_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What is to be said in a chat."""

    kind: ReplyKind
    thread_id: str
    text: str = ""
    run_id: str | None = None
    lines: tuple[int, ...] = ()
    """The lines that have their answer by it."""
    failed: str | None = None
    """Why the lines were not done, when they were not."""
    questions: tuple[Question, ...] = ()
    place: dict[str, Json] | None = None
    """Where it goes, when it is not where the thread's session is."""
    answers: tuple[str, ...] = ()
    """The platform's ids of what it answers, where that are no lines of its own."""
    question: str | None = None
    """The number of the question that has its answer."""
    message: str | None = None
    """The key of the message that is said by it, where the mail room waits to be told."""

    def draft(self, dedupe_key: str) -> OutboxDraft:
        """Return it as an outbox row."""
        payload: dict[str, Json] = {
            "kind": self.kind.value,
            "thread_id": self.thread_id,
            "text": self.text,
            "run_id": self.run_id,
            "lines": list(self.lines),
            "failed": self.failed,
            "questions": [
                {"number": one.number, "run_id": one.run_id, "call_id": one.call_id, "text": one.text}
                for one in self.questions
            ],
            "place": self.place,
            "answers": list(self.answers),
            "question": self.question,
            "message": self.message,
        }
        return OutboxDraft(
            lane=CHAT_LANE,
            target=target_of(self.thread_id),
            payload=payload,
            dedupe_key=dedupe_key,
            max_attempts=MOST_CLAIMS,
            order_key=None if self.kind is ReplyKind.NOTICE else self.thread_id,
        )

    @classmethod
    def of(cls, row: OutboxMessage) -> "Reply":
        """Return what a row says.

        Raises:
            KeyError, TypeError, ValueError: it is none of ours.
        """
        told = row.payload
        return cls(
            kind=ReplyKind(told["kind"]),
            thread_id=told["thread_id"],
            text=told["text"],
            run_id=told["run_id"],
            lines=tuple(told["lines"]),
            failed=told["failed"],
            questions=tuple(Question(**one) for one in told["questions"]),
            place=told["place"],
            answers=tuple(told.get("answers", ())),
            question=told["question"],
            message=told.get("message", told.get("letter")),  # as an earlier version named it
        )


def thread_name(platform: str, account: str, unique: str) -> str:
    """Return the name of a chat's thread."""
    return f"{CHAT_THREAD}{quote(platform, safe='')}/{quote(account, safe='')}/{unique}"


def target_name(platform: str, account: str) -> str:
    """Return the outbox target of all that one bot of ours says."""
    return f"{quote(platform, safe='')}/{quote(account, safe='')}"


def target_of(thread_id: str) -> str:
    """Return who says what is to be said on a chat's thread."""
    platform, account, _ = thread_id.removeprefix(CHAT_THREAD).split("/", 2)
    return f"{platform}/{account}"


def platform_of(thread_id: str) -> str:
    """Return the platform that a chat's thread belongs to."""
    return unquote(thread_id.removeprefix(CHAT_THREAD).partition("/")[0])


def is_chat(thread_id: str) -> bool:
    """Say whether a thread is a chat's."""
    return thread_id.startswith(CHAT_THREAD) and thread_id.count("/") >= 3


def question_of(run: RunRecord, ticket: RunWaitingTicket) -> Question:
    """Return what a person is asked. The number is short, and the same for the same question."""
    what = ticket.reason or f"The agent wants to use {ticket.tool_name or 'a tool'}"
    is_whole = not ticket.arguments or ticket.resume_mode.is_a_question
    text = what if is_whole else f"{what}: {_arguments(ticket.arguments)}"
    return Question(
        number=question_number(run.run_id, ticket), run_id=run.run_id, call_id=ticket.tool_call_id, text=text
    )


def question_number(run_id: str, ticket: RunWaitingTicket) -> str:
    """Return six characters that name a question; a later question never has those of an earlier one."""
    told = f"{run_id}\0{ticket.ticket_id}\0{ticket.tool_call_id}\0{ticket.updated_at}"
    return sha256(told.encode()).hexdigest()[:6]


def _arguments(arguments: Json, most: int = 600) -> str:
    text = arguments if isinstance(arguments, str) else dumps(arguments, ensure_ascii=False)
    return text if len(text) <= most else f"{text[: most - 1]}…"


class ChatEffects:
    """Has the ends of chats' runs told in their chats; those of other threads cause nothing here."""

    def __init__(self) -> None:
        self.hint: Callable[[], None] | None = None
        """Called when there is something to be said."""

    def stored(self, run: RunRecord) -> None:
        """Hint that there is something to be said."""
        if self.hint is not None and is_chat(run.thread_id):
            self.hint()

    def of(self, run: RunRecord) -> Sequence[OutboxDraft]:
        """Return the answer of a run that is done, or the questions of one that waits."""
        if not is_chat(run.thread_id):
            return ()
        reply = self._question(run) if run.status is RunStatus.WAITING else self._answer(run)
        if reply is None:
            return ()
        return (reply.draft(f"{reply.kind}/{run.run_id}/{run.dispatch_id}"),)

    def _answer(self, run: RunRecord) -> Reply:
        failed = run.termination is not None and run.termination.type is TerminationKind.ERROR
        return Reply(
            kind=ReplyKind.ANSWER,
            thread_id=run.thread_id,
            run_id=run.run_id,
            text=wording.end_of(run),
            lines=_lines_of(run),
            failed=wording.end_of(run) if failed else None,
        )

    def _question(self, run: RunRecord) -> Reply | None:
        waiting = run.waiting
        if waiting is None or waiting.reason is WaitingReason.BACKGROUND_TASKS:
            return None
        questions = tuple(question_of(run, ticket) for ticket in waiting.tickets)
        text = run.final_output or waiting.message or ""
        return Reply(
            kind=ReplyKind.QUESTION,
            thread_id=run.thread_id,
            run_id=run.run_id,
            text=text,
            questions=questions,
        )


def _lines_of(run: RunRecord) -> tuple[int, ...]:
    ids = run.input.trigger_message_ids if run.input else ()
    return tuple(sorted({line for line in map(line_id_of, ids) if line is not None}))

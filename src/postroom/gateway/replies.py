"""Outbox rows for chats: the answer of a run that ends, the question of a run that waits, a notice.

The rows of a run are stored in the transaction that ends the run. The name of the thread identifies the bot
that delivers a row. The row of an answer contains the chat to which it is sent. For other rows, the chat is
looked up on delivery.
"""

from collections.abc import Sequence
from enum import StrEnum
from urllib.parse import quote, unquote

import msgspec

from postroom.contracts.chat import CHAT_KIND, CHAT_THREAD, MAX_INBOUND, parse_inbound_id
from postroom.contracts.dispatch import DEFAULT_MAX_ATTEMPTS, RunDispatch
from postroom.contracts.inference import CALLER_TOOLS
from postroom.contracts.mail import Attachment
from postroom.contracts.messages import Json, ToolCall
from postroom.contracts.outbox import NO_END, OutboxDraft, OutboxMessage
from postroom.contracts.questions import YES_OR_NO, Asked, Given, QuestionKind, decision_on
from postroom.contracts.records import Record, replace
from postroom.contracts.runs import (
    CUT_OFF,
    RunRecord,
    RunStatus,
    RunWaitingTicket,
    TerminationKind,
    WaitingReason,
)
from postroom.contracts.tools import ToolCallResume
from postroom.contracts.waking import number_of
from postroom.gateway import wording
from postroom.gateway.events import Button, Card
from postroom.gateway.session import Platform
from postroom.ports import RunEffects
from postroom.stores.store import Transaction

_ENDED_EARLY = (TerminationKind.CANCELLED, TerminationKind.STOPPED, TerminationKind.BLOCKED)

_AGENT = 3
"""The position of the agent in the name of a thread."""


class ReplyKind(StrEnum):
    """The kind of a reply, such as an answer, a question or a notice."""

    ANSWER = "answer"
    NOTICE = "notice"
    QUESTION = "question"
    CARD = "card"
    """Updates a card, because its question was answered or its button was pressed."""
    UPDATE = "update"
    """Stores a raw update that could not be processed as a dead letter. Nothing is sent."""


class Question(Record, frozen=True, kw_only=True):
    """An open question of a run. People refer to a question by its `number`."""

    number: str
    run_id: str
    call_id: str
    text: str
    asked: Asked = YES_OR_NO

    def decision(self, given: Given, now: int) -> ToolCallResume:
        """Convert a person's answer to the decision with which the run resumes.

        Raises:
            NotPermitted: This person may not answer the question.
            InvalidArgument, TooLarge: The question does not accept the answer.
        """
        return decision_on(self.asked, self.number, self.text, given, now)


class Reply(Record, frozen=True, kw_only=True):
    """An outgoing message for a chat."""

    kind: ReplyKind
    thread_id: str
    text: str = ""
    run_id: str | None = None
    inbound_ids: tuple[int, ...] = ()
    """The inbound messages that the reply answers or, for a question, that the run has read."""
    failed: str | None = None
    """Why the answered messages have failed, or None if they have not."""
    error: str | None = None
    """Why there is no answer, for channels that return this to their caller as an error."""
    code: str | None = None
    """The code of the error that is returned to the caller, if it is a `PostroomError`."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tools that the caller must call before the answer can be completed."""
    usage: tuple[int, int] = (0, 0)
    """The numbers of tokens that the reply's run has read and written."""
    cost_micros: int = 0
    """The cost of the reply's run, in millionths of a US dollar."""
    choices: tuple[Button, ...] = ()
    """Buttons below a notice."""
    output: str | None = None
    """The text that the agent wrote, if postroom has changed or extended it in `text`."""
    is_cut: bool = False
    """Whether the answer is incomplete because the model reached its token limit."""
    questions: tuple[Question, ...] = ()
    source: dict[str, Json] | None = None
    """The chat to which the reply is sent.

    If None, the chat is looked up through the inbound messages, or else through the session of the thread.
    """
    answers: tuple[str, ...] = ()
    """The platform's ids of the messages that the reply answers.

    If empty, the ids are looked up through the inbound messages.
    """
    leaves_files: bool = False
    """Whether files of the run must be sent after the reply."""
    question: str | None = None
    """The number of the question that was answered."""
    waits_for: str | None = None
    """The platform's id of the message that is waiting according to a notice."""
    card: str | None = None
    """The platform's id of a notice's card whose button was pressed.

    None for the card of a question.
    """
    mail_key: str | None = None
    """The key of the mail that this reply delivers, if the mail room must learn the result."""
    keeps_quiet: bool = False
    """Whether the reply waits for the end of the chat's quiet hours."""
    files: tuple[Attachment, ...] = ()
    """Files to send after the reply, in addition to the files of its run."""

    @property
    def is_whole_answer(self) -> bool:
        """Whether `text` is the agent's complete and unchanged answer."""
        is_whole = not (self.is_cut or self.tool_calls or self.failed or self.error)
        return is_whole and self.kind is ReplyKind.ANSWER and self.output is None

    @property
    def says_where(self) -> bool:
        """Whether the reply contains the address of its chat."""
        has_ids = bool(self.answers) or not self.inbound_ids
        is_whole = self.source is not None and has_ids and not self.leaves_files
        return is_whole and self.kind is not ReplyKind.QUESTION

    def draft(self, dedupe_key: str) -> OutboxDraft:
        """Convert the reply to an outbox row.

        The replies of one thread are sent in order. The notices of one chat are sent in order.
        """
        order_key: str | None = None
        if self.kind not in (ReplyKind.NOTICE, ReplyKind.UPDATE) and self.card is None:
            order_key = self.thread_id
        elif self.kind is not ReplyKind.UPDATE and self.source is not None:
            quiet = "quiet" if self.keeps_quiet else ""
            order_key = f"notice/{quiet}/{self.source.get('thread_id') or ''}/{self.source.get('chat_id')}"
        return OutboxDraft(
            kind=CHAT_KIND,
            target=build_outbox_target(self.thread_id),
            payload=msgspec.to_builtins(self),
            dedupe_key=dedupe_key,
            max_attempts=NO_END,
            order_key=order_key,
        )

    @property
    def details(self) -> dict[str, Json]:
        """The details of an answer that a channel gets in addition to the text."""
        result: dict[str, Json] = {"usage": list(self.usage)} if any(self.usage) else {}
        if self.waits_for is not None:
            result["waits_for"] = self.waits_for
        if self.error is not None:
            result["error"] = self.error
            if self.code is not None:
                result["code"] = self.code
        if self.tool_calls:
            result |= {"tool_calls": msgspec.to_builtins(self.tool_calls), "text": self.text}
        elif self.output is not None:
            result["text"] = self.output
        if self.is_cut:
            result["is_cut"] = True
        return result

    @classmethod
    def of(cls, row: OutboxMessage) -> "Reply":
        """Return the reply that is stored in an outbox row.

        Raises:
            ValidationError: The row does not contain a reply.
        """
        return msgspec.convert(row.payload, cls)


def thread_name(platform: str, account: str, unique: str, agent: str | None = None) -> str:
    """Return the name of a chat's thread.

    The name contains the agent that answers. None means `[agent]`.
    """
    whose = "" if agent is None else f"/{quote(agent, safe='@')}"
    return f"{CHAT_THREAD}{quote(platform, safe='')}/{quote(account, safe='')}/{unique}{whose}"


def agent_on(thread_id: str) -> str | None:
    """Return the agent that answers on a chat's thread. None means `[agent]`."""
    parts = thread_id.removeprefix(CHAT_THREAD).split("/")
    return unquote(parts[_AGENT]) if len(parts) > _AGENT else None


def target_name(platform: str, account: str) -> str:
    """Return the outbox target for the messages of a bot."""
    return f"{quote(platform, safe='')}/{quote(account, safe='')}"


def build_outbox_target(thread_id: str) -> str:
    """Return the outbox target for the messages of a chat's thread."""
    platform, account, _ = thread_id.removeprefix(CHAT_THREAD).split("/", 2)
    return f"{platform}/{account}"


def is_chat(thread_id: str) -> bool:
    """Return whether a thread belongs to a chat."""
    return thread_id.startswith(CHAT_THREAD) and thread_id.count("/") >= 3


def has_waiting_caller(target: str) -> bool:
    """Return whether API callers may be waiting for the messages to an outbox target."""
    return target.startswith(f"{Platform.API_SERVER.value}/")


def question_of(run: RunRecord, ticket: RunWaitingTicket) -> Question:
    """Return the question that a run asks a person, with a short number that never changes."""
    return Question(
        number=number_of(run.run_id, ticket),
        run_id=run.run_id,
        call_id=ticket.tool_call_id,
        text=ticket.question,
        asked=ticket.asked,
    )


def card_of(question: Question, before: str = "") -> Card:
    """Return the card of a question, with buttons and with the text `before` above the question."""
    number, wanted = question.number, question.asked
    buttons: tuple[Button, ...] = ()
    how = ""
    match wanted.kind:
        case QuestionKind.YES_NO:
            buttons = (
                Button(label="Approve", value=f"approve {number}"),
                Button(label="Deny", value=f"deny {number}"),
            )
            how = f"Or in words: /answer {number} <text>" if wanted.in_words else ""
        case QuestionKind.CHOICE:
            buttons = tuple(
                Button(label=choice, value=f"answer {number} {place}")
                for place, choice in enumerate(wanted.choices, start=1)
            )
        case _:
            how = f"To answer, send {how_to_answer(question)}. You can also reply to this message."
    who = f"From {wanted.who}." if wanted.to or wanted.not_by else ""
    # The permitted action comes first: a text above it could open a block that hides the action.
    parts = (wanted.permits, before, question.text, who, how)
    return Card(text="\n\n".join(filter(None, parts)), buttons=buttons)


def closed_card(question: Question, note: str) -> str:
    """Return the text of the card of a closed question. `note` says why the question is closed."""
    return "\n\n".join(filter(None, (question.asked.permits, question.text, note)))


def how_to_answer(question: Question) -> str:
    """Return the chat commands that answer a question."""
    number, wanted = question.number, question.asked
    match wanted.kind:
        case QuestionKind.YES_NO:
            words = f", or in words: /answer {number} <text>" if wanted.in_words else ""
            return f"/approve {number} or /deny {number}{words}"
        case QuestionKind.CHOICE:
            return f"/answer {number} {' | '.join(wanted.choices)}"
        case QuestionKind.TEXT:
            return f"/answer {number} <text>"
        case QuestionKind.FILE:
            return f"on its page, with a file: no command can answer question {number}"
    fields = "; ".join(f"{field.name} = <{field.described}>" for field in wanted.fields)
    return f"/answer {number} {fields}"


def cards_of(run: RunRecord) -> list[Card]:
    """Return the cards of the last questions that a run asked."""
    tickets = run.waiting.tickets if run.waiting else [answered.ticket for answered in run.answered]
    before = run.final_output or (run.waiting.message if run.waiting else "") or ""
    return [
        card_of(question_of(run, ticket), "" if number else before) for number, ticket in enumerate(tickets)
    ]


def answer_of(run: RunRecord) -> Reply:
    """Return the reply that tells a chat the result of a run."""
    reason = run.termination
    failed = reason is not None and reason.type is TerminationKind.ERROR
    calls: tuple[ToolCall, ...] = ()
    if reason is not None and reason.value == CALLER_TOOLS and reason.detail:
        calls = tuple(msgspec.json.decode(reason.detail, type=list[ToolCall]))
    says_nothing = not run.final_output and reason is not None and reason.type in _ENDED_EARLY
    text = wording.describe_end(run)
    return Reply(
        kind=ReplyKind.ANSWER,
        thread_id=run.thread_id,
        run_id=run.run_id,
        text=(run.final_output or "") if calls else text,
        inbound_ids=list_inbound_ids(run),
        failed=text if failed else None,
        error=wording.failure_for_caller(run) if failed or says_nothing else None,
        code=reason.detail if reason and failed else None,
        tool_calls=calls,
        usage=(run.usage.input_tokens, run.usage.output_tokens),
        cost_micros=run.usage.cost_micros,
        output=None if failed or says_nothing or run.final_output == text else run.final_output or "",
        is_cut=reason is not None and (reason.value == CUT_OFF or reason.type is TerminationKind.STOPPED),
    )


class ChatEffects(RunEffects):
    """Stores the replies of chat runs in the transactions that end the runs."""

    def __init__(self, attempts: int = DEFAULT_MAX_ATTEMPTS) -> None:
        """Create the effects. `attempts` is the number of attempts before retries are minutes apart."""
        self._attempts = attempts

    def put_back(self, tx: Transaction, row: RunDispatch, *, is_stop: bool) -> None:
        """Tell the sender of a message once that the answer is delayed."""
        if not is_stop and is_chat(row.thread_id) and row.attempt_count == self._attempts:
            text = wording.tried_again(row.last_error or "")
            notice = Reply(kind=ReplyKind.NOTICE, thread_id=row.thread_id, run_id=row.run_id, text=text)
            tx.outbox.enqueue((notice.draft(f"outage/{row.run_id}/{row.dispatch_id}"),))

    def of(self, tx: Transaction, run: RunRecord) -> Sequence[OutboxDraft]:
        """Return the answer of a run that has ended, or the questions of a run that waits."""
        if not is_chat(run.thread_id):
            return ()
        closed = list[OutboxDraft]()
        for answered in run.answered:
            if answered.is_left or answered.asked_again_as is not None:
                question = question_of(run, answered.ticket)
                text = closed_card(question, wording.NO_LONGER_ASKED)  # it has no buttons
                card = Reply(
                    kind=ReplyKind.CARD, thread_id=run.thread_id, text=text, question=question.number
                )
                closed.append(card.draft(f"withdrawn/{question.number}"))
        if run.status is RunStatus.WAITING:
            waiting = run.waiting
            if waiting is None or waiting.reason is WaitingReason.BACKGROUND_TASKS:
                reply = None
            else:
                questions = tuple(question_of(run, ticket) for ticket in run.open_tickets)
                text = run.final_output or waiting.message or ""
                reply = Reply(
                    kind=ReplyKind.QUESTION,
                    thread_id=run.thread_id,
                    run_id=run.run_id,
                    text=text,
                    inbound_ids=list_inbound_ids(run),
                    questions=questions,
                )
        else:  # the reply contains its chat, so that delivery need not look it up
            reason = run.termination
            if run.final_output and reason is not None and reason.type is TerminationKind.CANCELLED:
                stored = tx.runs.threads.load_run(run.run_id)
                if stored is not None and stored.waiting is not None:  # shown above its question already
                    run = replace(run, final_output=None)
            reply = answer_of(run)
            read, files = tx.chats.answered(reply.inbound_ids[:MAX_INBOUND], run.thread_id, run.run_id)
            reply = replace(
                reply,
                source=(read[-1].body.get("source") or None) if read else None,
                answers=tuple([message.key.message_id for message in read]),
                leaves_files=bool(files),
            )
        if reply is None:
            return ()
        return (*closed, reply.draft(f"{reply.kind}/{run.run_id}/{run.dispatch_id}"))


def list_inbound_ids(run: RunRecord) -> tuple[int, ...]:
    """Return the ids of the inbound messages that a run answers."""
    ids = run.input.trigger_message_ids if run.input else ()
    return tuple(sorted(set(filter(None, map(parse_inbound_id, ids)))))

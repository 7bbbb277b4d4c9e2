"""All texts that the gateway itself writes to people."""

from collections.abc import Sequence
from typing import Final

from postroom.contracts import runs
from postroom.contracts.chat_links import LinkOutcome
from postroom.contracts.clock import iso
from postroom.contracts.errors import (
    AgentNotFound,
    ContentFiltered,
    ContextOverflow,
    InferenceFailed,
    InferenceTimeout,
    ModelNotFound,
    NoModelEndpoint,
    Overloaded,
    ProviderFailed,
    RateLimited,
    RequestRefused,
    RunnerNotFound,
    StreamInterrupted,
    Unauthorized,
)
from postroom.contracts.inference import MISPLACED_RESULT
from postroom.contracts.quoting import one_line
from postroom.contracts.runs import RunRecord, TerminationKind, TerminationReason
from postroom.contracts.work import FailedRuns

_MAX_FAILURES: Final = 20
_SHOWN: Final = 200
"""Maximum number of characters of an error in the list of failed runs."""

NO_ANSWER = "(The agent ended without an answer.)"
ANSWER_NOT_STORED = "The answer to this message is no longer stored. Send the message again."
STOPPED = "Stopped."
RETRY_FAILED = (
    "Retry or dismiss them on the first page, or with `postroom runs replay` and `postroom runs discard`."
)
NO_LONGER_ASKED = "This question is no longer open."
CUT_OFF = "(The answer is cut off: it reached the model's limit of tokens.)"
_OVER_A_LIMIT = {
    "wall_timeout": "Stopped: the run reached its time limit.",
    "max_rounds": "Stopped: the run reached its limit of steps.",
    "token_budget": "Stopped: the run reached its limit of tokens.",
}
POSSIBLE_DUPLICATE = "(You may have received this before: the last attempt was interrupted.)"
STARTING_UP = "The agent was still starting up, so the run was stopped before it began."
"""Other programs look for the words "starting up" in this text."""
STOPPING = "Stopping."
BUSY = (
    "Rejected: the agent is busy. Send the message again later. This notice appears at most every 30 seconds."
)
AT_WORK = "Not done: the agent is busy. Send this command again after the answer, or send /stop first."
NOTHING_TO_STOP = "There is no active run in this chat."
EDITED_TOO_LATE = "The agent had already read this message. Send the correction as a new message."
EDITED_UNREAD = (
    "This edit is ignored, because the original message was withdrawn or rejected. Send it as a new message."
)


def edited_into(command: str) -> str:
    """Return the notice that a message was withdrawn because an edit made it a command."""
    return (
        f"You changed the message to the command {command}, so the message was withdrawn. The command was "
        "not executed: send it as a new message."
    )


DRAINING = "The server is restarting. Your message is stored and will be answered after the restart."
NOT_ALLOWED = "You are not allowed to do that here."
A_PERSON_ANSWERS = "A person answers in this chat, not an agent: write your message."
WHEN_AND_WHAT = (
    "Add a time and a text. The time is from 1m (1s for /remind) to 366d; /every also accepts days "
    "with a time. Examples: /remind 10m Lock the door. /every mon,wed at 18:30 Europe/Berlin List "
    "the news."
)
ANSWERS_ONLY = "Not saved: this channel sends nothing except answers to requests."
ONLY_LOOKS = "You have read-only access here: you can use /help and /status, but not send messages."
READ_AT_NEXT_STEP = "The agent will read this at its next step."
LINKED_WHERE = "Only direct chats can be linked, and not the threads in them."
NOT_LINKED = "This chat is not linked to another chat; /link gives you a code."
UNLINKED = "This chat is no longer linked and has its own conversation again."
TOGETHER = "This chat and your other chats share one conversation again."
APART = "This chat now has its own conversation; /link together undoes that."
NOT_LINKED_BECAUSE = {
    LinkOutcome.UNKNOWN: "This code is not valid: send /link in your other chat for a new code.",
    LinkOutcome.LOCKED: (
        "The code was not checked, because too many wrong codes were sent here. Try again later."
    ),
    LinkOutcome.OWN: "This code was made in this chat: send it in your other chat.",
    LinkOutcome.TOGETHER: "These two chats are already linked.",
    LinkOutcome.OTHER: "Both chats are already linked to other chats; send /unlink in one of them first.",
}
QUIET = "held: the chat has quiet hours"
NOBODY_REACHED = (
    "No agent can write to you in this chat until the operator adds you with `postroom people add`."
)
READ_TOGETHER = "The agent reads this together with your other messages."


GREETING = "Hello! Write your message, and the answer appears here. /help lists the commands."
NOTHING_TO_READ = "I cannot read this message: please write it as text."


def not_read(parts: Sequence[str]) -> str:
    """Return the notice about the parts of a message that agents cannot read."""
    return f"I cannot read {', '.join(parts)}. The agent gets the rest of your message."


def nothing_to_read(parts: Sequence[str]) -> str:
    """Return the refusal of a message that contains nothing readable."""
    return f"I cannot read {', '.join(parts)}: please write it as text." if parts else NOTHING_TO_READ


_MODEL_TROUBLE = {
    RateLimited: "the model provider's rate limit was reached",
    Overloaded: "the model provider is overloaded",
    InferenceTimeout: "the model did not answer in time",
    StreamInterrupted: "the connection to the model was lost",
    ProviderFailed: "the model provider failed",
    InferenceFailed: "the model failed",
    Unauthorized: "the model provider rejected the server's API key, or the quota is used up",
    ModelNotFound: "the model provider has no such model",
    NoModelEndpoint: "the model's base_url returned a web page or other unexpected data",
    # LangChain recognises the failure by the first half of this text, and LiteLLM by the second half.
    ContextOverflow: "this exceeds the context window: it is longer than the model's context length",
    RequestRefused: "the model rejected this message",
    ContentFiltered: "the model provider withheld the answer",
}
"""An explanation for people, for each kind of model failure.

The error text of a provider may name the operator's account. The error text is stored with the run, where
operators see it, and is not shown in chats.
"""
_BY_BRANCH = {kind.branch: reason for kind, reason in _MODEL_TROUBLE.items()}
_BY_CODE = {kind.code: reason for kind, reason in _MODEL_TROUBLE.items()}


def _plain(error: str | None) -> str:
    """Return the reason for a failure, without the error text of the model's provider."""
    branch = (error or "").partition(": ")[0]
    return _BY_BRANCH.get(branch) or _short(error)


def failure_for_caller(run: RunRecord, most: int = 1_000) -> str:
    """Return the reason for a run's failure, as an API caller sees it.

    The reason contains the run id instead of the provider's error text.
    """
    reason = run.termination
    if reason is None or reason.type is not TerminationKind.ERROR:
        return describe_end(run)
    plain, text = _BY_CODE.get(reason.detail or ""), reason.value or describe_end(run)
    if plain is None or MISPLACED_RESULT in text:
        return text[:most]
    return f"{plain}; an operator can read the provider's message in run {run.run_id}"


def tried_again(error: str) -> str:
    """Return the notice that the answer is delayed."""
    return f"No answer yet: {_plain(error)}. Retrying for a few minutes."


def too_old(minutes: int) -> str:
    """Return the notice that a message is too old to be answered after an interruption."""
    return (
        f"This message waited over {minutes} minutes while the server was away, and will not be "
        "answered. Send it again."
    )


def behind_question(how: str) -> str:
    """Return the notice that a message waits for the answer to an open question."""
    return f"Queued. This does not answer the open question, which comes first. To answer the question: {how}"


def queued(ahead: int) -> str:
    """Return the notice that a message waits for earlier messages."""
    if not ahead:
        return "Queued: it is next."
    return f"Queued: {'1 message' if ahead == 1 else f'{ahead} messages'} before it."


def queue_full(most: int) -> str:
    """Return the notice that a message is refused, because too many messages wait."""
    return f"Rejected: {most} messages are already waiting here. Send it again later."


def describe_end(run: RunRecord) -> str:
    """Return the text that a chat gets at the end of a run: the answer, or why there is no answer."""
    reason = run.termination
    if run.final_output and (reason is None or reason.type is not TerminationKind.ERROR):
        return "\n\n".join(filter(None, (run.final_output, _mark(reason))))
    if reason is None:
        return NO_ANSWER
    match reason.type:
        case TerminationKind.CANCELLED | TerminationKind.STOPPED:
            return _mark(reason)
        case TerminationKind.BLOCKED:
            return f"The agent was not allowed to continue: {_short(reason.value)}"
        case TerminationKind.ERROR:
            why = _plain(reason.value)
            match reason.detail:
                case ContextOverflow.code:
                    return (
                        "This message exceeds the model's context and was skipped: send it in smaller parts."
                    )
                case RequestRefused.code | ContentFiltered.code:
                    return "The model rejected this message, and it was skipped: rephrase it, or continue."
                case Unauthorized.code | ModelNotFound.code | NoModelEndpoint.code:
                    return (
                        f"The agent could not answer: {why}. Tell the operator. After the fix, send /retry."
                    )
                case AgentNotFound.code | RunnerNotFound.code:
                    plain = why.removeprefix(f"{RunnerNotFound.branch}: ")
                    return f"No agent answers: {plain}; tell the operator. After the fix, send /retry."
                case _:
                    return f"The agent could not answer: {why}"
        case _:
            return _mark(reason) or NO_ANSWER


def _mark(reason: TerminationReason | None) -> str:
    """Return the sentence that marks an answer as incomplete, or "" if the answer is complete."""
    match reason:
        case TerminationReason(type=TerminationKind.CANCELLED):
            return STOPPED
        case TerminationReason(type=TerminationKind.STOPPED, value=code):
            return _OVER_A_LIMIT.get(code or "", STOPPED)
        case TerminationReason(type=TerminationKind.NATURAL_END, value=runs.CUT_OFF):
            return CUT_OFF
    return ""


def _short(text: str | None, most: int = 300) -> str:
    line = " ".join((text or "the reason is unknown").split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def pairing(platform: str, code: str, lifetime: str) -> str:
    """Return the reply that gives a stranger a pairing code."""
    return (
        f"I do not know you yet. Ask the owner of this server to run `postroom gateway pair {platform} "
        f"{code}`. The code is valid for {lifetime}."
    )


def link_code(code: str, minutes: int, linked: Sequence[str]) -> str:
    """Return the instructions for linking two chats, and the list of existing links."""
    already = f"Linked with {', '.join(linked)}. " if linked else ""
    return (
        f"{already}Send /link {code} in your other chat within {minutes} minutes. Keep it secret: "
        "anyone who sends it shares this conversation. Earlier codes of this chat are no longer "
        "valid."
    )


def linked(other: str) -> str:
    """Return the notice about a new link, for the chat in which the code was entered."""
    return (
        f"Linked with {other}, whose conversation continues in this chat. /link apart separates the "
        "conversations again; /unlink ends the link."
    )


def linked_by(other: str) -> str:
    """Return the notice about a new link, for the chat in which the code was created."""
    return f"Linked with {other}, which now shares this conversation. If that is not you, send /unlink."


def reached_here(person: str) -> str:
    """Return the notice that messages from agents are now sent to this chat."""
    return f"Messages to {person} now arrive here."


def passed_on(person: str) -> str:
    """Return the notice that a message was sent to a person."""
    return f"{person} has received your message, and will answer here."


def not_passed_on(person: str, why: str) -> str:
    """Return the notice that a message did not reach a person."""
    return f"Not sent to {person}: {_short(why)}."


def passed_on_from(who: str, platform: str) -> str:
    """Return the subject of the mail that passes a chat message on to a person."""
    return f"{_short(who, 100)} on {platform}"


def left_behind(files: int) -> str:
    """Return the notice that the files of a message are only in the chat."""
    return f"({files} {'file is' if files == 1 else 'files are'} in the chat, and not included here.)"


def files_not_passed_on(person: str) -> str:
    """Return the notice that a message reached a person without its files."""
    return f"{person} has received your message without its files."


def unknown_command(name: str) -> str:
    """Return the notice about an unknown command."""
    return f"There is no command /{name}. /help lists the commands."


def not_read_by(command: str, takes: str, words: str) -> str:
    """Return the error message for a command with invalid arguments."""
    return f"Not done: /{command} takes {takes}, and you wrote {_short(words, 60)!r}."


def agent_gone(agent: str) -> str:
    """Return the notice that the agent chosen in a chat no longer answers."""
    return f"{agent}, your chosen agent, no longer answers in this chat. /agent lists the available agents."


def reminder(text: str) -> str:
    """Return the text of a reminder."""
    return f"Reminder: {text}"


def too_many_schedules(most: int) -> str:
    """Return the notice that a session has too many schedules."""
    return f"Rejected: this chat already has {most}; /every stop <number> removes one."


def too_much_forgotten(most: int) -> str:
    """Return the notice that the limit of undone runs is reached."""
    return (
        f"Not done: {most} exchanges of this conversation were already removed. /new starts a new "
        "conversation."
    )


def no_time_of_day(told: str) -> str:
    """Return the notice that a word is not a valid time of day."""
    return f"Not saved: {_short(told, 40)!r} is not a time of day; write 9:00, 18:30 or 6pm."


def no_day(told: str) -> str:
    """Return the notice that a word is not a valid day."""
    return (
        f"Not saved: {_short(told, 40)!r} is not a day; write day, weekday, weekend, or days such as mon,wed "
        "or mon-fri."
    )


BEGAN_ANEW = "Started a new conversation; /resume resumes an earlier one."


def file_missing(name: str, why: str) -> str:
    """Return the notice that the agent got a message without its file."""
    return f"I could not receive {name}: {_short(why)}. The agent gets your message without it."


def file_not_read(name: str, why: str) -> str:
    """Return the notice that the agent cannot read a file."""
    return f"The agent cannot read {name}: {_short(why)}."


def not_transcribed(name: str, why: str) -> str:
    """Return the notice that a file could not be transcribed."""
    return f"{name} could not be transcribed: {_short(why)}."


def file_not_sent(name: str, why: str) -> str:
    """Return the notice that a file of the agent's answer could not be sent."""
    return f"The agent's file {name} could not be sent: {_short(why)}."


NOT_SPOKEN = "The last answer could not be sent as speech. Its text is complete."
OPERATORS_CHOOSE = "Only operators can choose the model of this chat."
NO_MODELS = "There are no models to choose from; the operator lists them in [agent.models]."


def used_up(read: int, written: int, cost_micros: int) -> str:
    """Return a line with the number of tokens and the cost of an answer."""
    cost = f", cost {cost_micros / 1_000_000:.4f} USD" if cost_micros else ""
    return f"{read:,} tokens read, {written:,} written{cost}"


def failures(groups: Sequence[FailedRuns]) -> str:
    """Return the text that lists failed runs, which are grouped by agent and error."""
    lines = ["Failed runs:"]
    for one in groups[:_MAX_FAILURES]:
        whose = f"{one.agent}@{one.project}" if one.project else f"{one.agent} in {one.chat}"
        times = "" if len(one.run_ids) == 1 else f" {len(one.run_ids)} times, last"
        lines.append(
            f"- {one_line(whose)} failed{times} at {iso(one.newest_at)}: {one_line(one.why)[:_SHOWN]} "
            f"(run {one.run_ids[0]})"
        )
    if len(groups) > _MAX_FAILURES:
        lines.append(f"And {len(groups) - _MAX_FAILURES} other failures.")
    return "\n".join([*lines, RETRY_FAILED])

"""What the gateway itself says to people: every sentence of its own, in one place."""

from collections.abc import Sequence

from postroom.contracts import runs
from postroom.contracts.chat_links import LinkOutcome
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
from postroom.contracts.runs import RunRecord, TerminationKind, TerminationReason

NO_ANSWER = "(The agent ended without an answer.)"
ANSWER_NOT_STORED = "The answer to this message is not stored any more. Send the message again."
STOPPED = "Stopped."
NO_LONGER_ASKED = "Stopped. This is no longer asked."
CUT_OFF = "(The answer is cut off: it reached the model's limit of tokens.)"
_OVER_A_LIMIT = {
    "wall_timeout": "Stopped: it took longer than a run may take.",
    "max_rounds": "Stopped: it took more steps than a run may take.",
    "token_budget": "Stopped: it used more tokens than a run may use.",
}
POSSIBLE_DUPLICATE = "(You may have had this before: the last try was cut off.)"
STARTING_UP = "The agent is still starting up; it is stopped before it begins."
STOPPING = "Stopping."
BUSY = (
    "Not taken: the agent is at work. Send it again later. I take no message until then, and repeat this only"
    " every half a minute."
)
AT_WORK = "Not done: the agent is at work. Send this command again after its answer, or send /stop first."
NOTHING_TO_STOP = "Nothing is at work here."
EDITED_TOO_LATE = "I had read this before you changed it. Send what is different as a new message."
EDITED_UNREAD = "I do not read this, for it was taken back or refused before. Send it as a new message."


def edited_into(command: str) -> str:
    """Say that a message was changed into a command, and is neither done nor read."""
    return f"I took back what you changed into {command}, and did nothing: send the command as a new message."


DRAINING = "I am being restarted. Your message is kept and is answered when I am back."
NOT_ALLOWED = "You may not do that here."
A_PERSON_ANSWERS = "A person answers here, and no agent: write what you want to say."
WHEN_AND_WHAT = (
    "Say when and what, with a span from 1m (for /remind 1s) to 366d, or for /every with days and a time:"
    " /remind 10m Lock the door. /every mon,wed at 18:30 Europe/Berlin Say what is new."
)
ANSWERS_ONLY = "Not kept: nothing can be said here but the answer to a request."
ONLY_LOOKS = "Not taken: you may look here, with /help and /status, and not write."
READ_AT_NEXT_STEP = "The agent reads this at its next step."
LINKED_WHERE = "Only direct chats can be linked, and outside of their threads."
NOT_LINKED = "This chat is linked with no other; /link gives a code for that."
UNLINKED = "This chat is linked with no other any more; it has a conversation of its own again."
TOGETHER = "This chat has one conversation with your other chats again."
APART = "This chat has a conversation of its own now; /link together undoes that."
NOT_LINKED_BECAUSE = {
    LinkOutcome.UNKNOWN: "This code is not good: /link in your other chat gives a new one.",
    LinkOutcome.LOCKED: "Not looked at: too many wrong codes were entered here; try again later.",
    LinkOutcome.OWN: "This code was given here: send it in your other chat.",
    LinkOutcome.TOGETHER: "These two chats are linked already.",
    LinkOutcome.OTHER: "Both chats are linked with others already; /unlink one of them first.",
}
QUIET = "held: the chat has quiet hours"
NOBODY_REACHED = (
    "No agent can write to you here: whoever runs the server names you with `postroom people add`."
)
READ_TOGETHER = "This is read together with what else you sent."


GREETING = "Hello! Write what you want, and the answer comes here. /help lists the commands."
NOTHING_TO_READ = "There is nothing in this that I can read: write what you want to say."


def not_read(parts: Sequence[str]) -> str:
    """Say which parts of a message no agent is given."""
    return f"I cannot read {', '.join(parts)}. The agent has the rest of your message."


def nothing_to_read(parts: Sequence[str]) -> str:
    """Say that a message is refused, because no part of it can be read."""
    return f"I cannot read {', '.join(parts)}: say it in words." if parts else NOTHING_TO_READ


_MODEL_TROUBLE = {
    RateLimited: "the model's provider asks for fewer requests",
    Overloaded: "the model's provider is overloaded",
    InferenceTimeout: "the model took too long",
    StreamInterrupted: "the connection to the model broke off",
    ProviderFailed: "the model's provider failed",
    InferenceFailed: "the model failed",
    Unauthorized: "the model's provider refuses the server's key or quota",
    ModelNotFound: "the model's provider has no such model",
    NoModelEndpoint: "the model's address answered with a web page or other data: check base_url",
    # LangChain recognises the failure by the first half of these words, LiteLLM by the second half.
    ContextOverflow: "this exceeds the context window: it is longer than the model's context length",
    RequestRefused: "the model refused this",
    ContentFiltered: "the model's provider withheld the answer",
}
"""A plain reason for each failure of a model. A provider's words may name the operator's account: members do
not see them. They are kept with the run, for operators."""
_BY_BRANCH = {kind.branch: reason for kind, reason in _MODEL_TROUBLE.items()}
_BY_CODE = {kind.code: reason for kind, reason in _MODEL_TROUBLE.items()}


def _plain(error: str | None) -> str:
    """Return the reason for a failure without the words of a model's provider."""
    branch = (error or "").partition(": ")[0]
    return _BY_BRANCH.get(branch) or _short(error)


def failure_for_caller(run: RunRecord, most: int = 1_000) -> str:
    """Return the reason for a failure as a caller of the API gets it, without the words of a provider.

    The text names the run, with which those words are kept for operators.
    """
    reason = run.termination
    if reason is None or reason.type is not TerminationKind.ERROR:
        return end_of(run)
    plain, said = _BY_CODE.get(reason.detail or ""), reason.value or end_of(run)
    if plain is None or MISPLACED_RESULT in said:
        return said[:most]
    return f"{plain}; an operator finds the provider's own words at run {run.run_id}"


def tried_again(error: str) -> str:
    """Say that there is no answer yet, and that one is still to come."""
    return f"I could not answer yet: {_plain(error)}. I go on trying for some minutes."


def too_old(minutes: int) -> str:
    """Say that a message was left unanswered over a break."""
    return f"This waited over {minutes} minutes while I was away and is not answered any more. Send it again."


def queued(ahead: int) -> str:
    """Say that a message waits for its turn."""
    return f"Queued: {_messages(ahead)} before it." if ahead else "Queued: it is next."


def _messages(number: int) -> str:
    return "1 message" if number == 1 else f"{number} messages"


def queue_full(most: int) -> str:
    """Say that a message is refused because too many wait."""
    return f"Not taken: {most} messages wait here already. Send it again later."


def end_of(run: RunRecord) -> str:
    """Return the text that a chat shows at the end of a run: its answer, or the reason why there is none."""
    reason = run.termination
    if run.final_output and (reason is None or reason.type is not TerminationKind.ERROR):
        return "\n\n".join(filter(None, (run.final_output, _mark(reason))))
    if reason is None:
        return NO_ANSWER
    match reason.type:
        case TerminationKind.CANCELLED | TerminationKind.STOPPED:
            return _mark(reason)
        case TerminationKind.BLOCKED:
            return f"The agent was not allowed to go on: {_short(reason.value)}"
        case TerminationKind.ERROR:
            return _failed(reason)
        case _:
            return _mark(reason) or NO_ANSWER


def _mark(reason: TerminationReason | None) -> str:
    """Return the sentence that marks an answer which is not whole; nothing for one that is."""
    match reason:
        case TerminationReason(type=TerminationKind.CANCELLED):
            return STOPPED
        case TerminationReason(type=TerminationKind.STOPPED, value=code):
            return _OVER_A_LIMIT.get(code or "", STOPPED)
        case TerminationReason(type=TerminationKind.NATURAL_END, value=runs.CUT_OFF):
            return CUT_OFF
    return ""


def _failed(reason: TerminationReason) -> str:
    """Say in one sentence why there is no answer, and what can be done."""
    why = _plain(reason.value)
    match reason.detail:
        case ContextOverflow.code:
            return "This is longer than the model takes and is set aside: send it in smaller parts."
        case RequestRefused.code | ContentFiltered.code:
            return "The model refused this and it is set aside: say it differently, or go on."
        case Unauthorized.code | ModelNotFound.code | NoModelEndpoint.code:
            return f"The agent could not answer: {why}. Tell the operator, then send /retry once it is fixed."
        case AgentNotFound.code | RunnerNotFound.code:
            plain = why.removeprefix(f"{RunnerNotFound.branch}: ")
            return f"Nobody answers: {plain}; tell who runs this server, and send /retry when it is mended."
        case _:
            return f"The agent could not answer: {why}"


def _short(text: str | None, most: int = 300) -> str:
    line = " ".join((text or "no reason is known").split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def pairing(platform: str, code: str, lifetime: str) -> str:
    """Return the answer to a stranger who gets a code."""
    return (
        f"I do not know you yet. Ask the owner to run `postroom gateway pair {platform} {code}`."
        f" The code is valid for {lifetime}."
    )


def link_code(code: str, minutes: int, linked: Sequence[str]) -> str:
    """Say how a chat is linked with another, and with which it is."""
    already = f"Linked with {', '.join(linked)}. " if linked else ""
    return (
        f"{already}Send /link {code} in your other chat within {minutes} minutes, and nobody else: whoever"
        " sends it shares this conversation. A code that was given here before counts no more."
    )


def linked(other: str) -> str:
    """Say that a chat is linked, in the chat in which the code was entered."""
    return (
        f"Linked with {other}, whose conversation goes on here; /link apart gives this chat its own again,"
        " /unlink ends it."
    )


def linked_by(other: str) -> str:
    """Say that a chat is linked, in the chat in which the code was given."""
    return f"Linked with {other}, which shares this conversation now. If that is not you, send /unlink."


def reached_here(person: str) -> str:
    """Say that messages of agents come to this chat."""
    return f"Messages to {person} come here from now on."


def passed_on(person: str) -> str:
    """Say that a person has a message."""
    return f"{person} has your message, and answers here."


def not_passed_on(person: str, why: str) -> str:
    """Say that a person does not have a message."""
    return f"Not passed on to {person}: {_short(why)}."


def passed_on_from(who: str, platform: str) -> str:
    """Return the subject of what a person is written from a chat."""
    return f"{_short(who, 100)} on {platform}"


def left_behind(files: int) -> str:
    """Tell a person that files are left behind in the chat."""
    return f"({files} {'file is' if files == 1 else 'files are'} in the chat, and not passed on.)"


def files_not_passed_on(person: str) -> str:
    """Say that a person does not have the files that came with a message."""
    return f"{person} has your message without its files."


def unknown_command(name: str) -> str:
    """Say that there is no such command."""
    return f"There is no command /{name}. /help lists those there are."


def agent_gone(agent: str) -> str:
    """Say that the agent that was chosen does not answer any more."""
    return f"{agent}, which you chose, no longer answers in this chat. /agent lists the agents that do."


def reminder(text: str) -> str:
    """Say what somebody asked to be reminded of."""
    return f"Reminder: {text}"


def too_many_schedules(most: int) -> str:
    """Say that nothing more is kept for later."""
    return f"Not taken: {most} are kept here already; /every stop <number> removes one."


def too_much_forgotten(most: int) -> str:
    """Say that no more of a conversation can be forgotten."""
    return f"Not done: {most} exchanges of this conversation are forgotten already. /new begins a new one."


def no_time_of_day(told: str) -> str:
    """Say that a word names no time of day."""
    return f"{_short(told, 40)} is no time of day: write 9:00, 18:30 or 6pm."


def no_day(told: str) -> str:
    """Say that a word names no days."""
    return (
        f"{_short(told, 40)} names no day: write day, weekday, weekend, or days such as mon,wed or mon-fri."
    )


BEGAN_ANEW = "A new conversation begins; /resume takes up an earlier one."


def file_missing(name: str, why: str) -> str:
    """Say that the agent has a message without its file."""
    return f"I could not take {name}: {_short(why)}. The agent has your message without it."


def file_not_read(name: str, why: str) -> str:
    """Say that the agent cannot do anything with a file."""
    return f"The agent cannot read {name}: {_short(why)}."


def not_transcribed(name: str, why: str) -> str:
    """Say that nobody knows what is said in a file."""
    return f"What is said in {name} could not be written down: {_short(why)}."


def file_not_sent(name: str, why: str) -> str:
    """Say that a file of the agent's answer did not come."""
    return f"The agent's file {name} could not be sent: {_short(why)}."


NOT_SPOKEN = "I could not send the last answer as speech; its text is complete."
OPERATORS_CHOOSE = "Only operators choose the model of this chat."
NO_MODELS = "No models are offered here; the operator lists them in [agent.models]."


def used_up(read: int, written: int, cost_micros: int) -> str:
    """Say which tokens an answer took, and its cost if the prices are known."""
    cost = f", cost {cost_micros / 1_000_000:.4f} USD" if cost_micros else ""
    return f"{read:,} tokens read, {written:,} written{cost}"

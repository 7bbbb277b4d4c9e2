"""What a run sees of its thread: pure decisions over the committed messages.

Every tool call that the model sees has its answer right behind it; a call without an answer is not shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from postroom.contracts.messages import Message, Role, ToolCall, Visibility
from postroom.contracts.records import replace


@dataclass(slots=True)
class _Turn:
    """A message as the model sees it, with the answers to the calls in it."""

    message: Message
    answers: dict[str, Message] = field(default_factory=dict)


def is_output_of(message: Message, run_id: str) -> bool:
    """Say whether a run's model or tools said this."""
    said_by = message.metadata.run_id if message.metadata else None
    return said_by == run_id and message.role in (Role.ASSISTANT, Role.TOOL)


def without_former_output(messages: Sequence[Message], run_id: str, until: str | None) -> tuple[Message, ...]:
    """Leave out what a run said up to the message `until`: it began again after that."""
    ids = [message.id for message in messages]
    if until is None or until not in ids:
        return tuple(messages)
    end = ids.index(until) + 1
    kept = (message for message in messages[:end] if not is_output_of(message, run_id))
    return (*kept, *messages[end:])


def as_seen_by_model(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the conversation with answers behind their calls, and neither without the other."""
    turns: list[_Turn] = []
    asked: dict[str, _Turn] = {}
    for message in messages:
        if message.role is Role.TOOL:
            turn = asked.get(message.tool_call_id or "")
            if turn is not None:
                turn.answers.setdefault(message.tool_call_id or "", message)
            continue
        turn = _Turn(message)
        turns.append(turn)
        asked.update({call.id: turn for call in message.tool_calls})
    return tuple(message for turn in turns for message in _shown(turn))


def _shown(turn: _Turn) -> tuple[Message, ...]:
    message = turn.message
    if not message.tool_calls:
        return (message,)
    answered = tuple(call for call in message.tool_calls if call.id in turn.answers)
    if not answered and not message.content:
        return ()
    answers = (turn.answers[call.id] for call in answered)
    return (replace(message, tool_calls=answered), *answers)


def has_input_after(messages: Sequence[Message], call_id: str) -> bool:
    """Say whether somebody spoke after the model made this call; what the runtime says does not count."""
    for message in reversed(messages):
        if message.role is Role.USER and message.visibility is Visibility.ALL:
            return True
        if any(call.id == call_id for call in message.tool_calls):
            return False
    return False


def calls_left(messages: Sequence[Message], run_id: str) -> tuple[ToolCall, ...]:
    """Return the calls of the run's last step that nothing has answered."""
    answered: set[str | None] = set()
    for message in reversed(messages):
        if message.role is Role.TOOL:
            answered.add(message.tool_call_id)
        elif is_output_of(message, run_id):
            return tuple(call for call in message.tool_calls if call.id not in answered)
    return ()


def own_answer(messages: Sequence[Message], run_id: str) -> Message | None:
    """Return the run's last word, when nothing came after it that wants an answer."""
    last = messages[-1] if messages else None
    if last is None or last.role is not Role.ASSISTANT or last.tool_calls:
        return None
    return last if is_output_of(last, run_id) else None

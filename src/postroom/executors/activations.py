"""The identity and prompt of a new request, for executors."""

import uuid

from postroom.contracts import executor
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import RunIdentity
from postroom.contracts.errors import InvalidActivation, InvalidArgument
from postroom.contracts.inference import CallerRequest
from postroom.contracts.messages import Message, storable


def identity_of(activation: RunActivation) -> RunIdentity:
    """Return the identity of the run and its origin."""
    return executor.identity_of(activation, run_id=activation.run_id or f"run_{uuid.uuid4().hex}")


def prompt_of(activation: RunActivation) -> str:
    """Return the prompt of the run: the texts of its messages, separated by blank lines.

    The caller's context for the conversation comes before its message.

    Raises:
        InvalidActivation: The messages contain no text.
        InvalidArgument: The caller asks for something that only models can do.
    """
    texts = [text for message in activation.messages for text in _told(message) if text.strip()]
    if not texts:
        raise InvalidActivation(
            f"run {activation.run_id!r} has no text for its agent", value=activation.run_id
        )
    return storable("\n\n".join(texts))


def _told(message: Message) -> tuple[str, ...]:
    asked = CallerRequest.of(message)
    more = asked.overrides.more if asked.overrides else {}
    for name in ("tools", "tool_choice", "response_format"):
        if asked.tools if name == "tools" else name in more:
            raise InvalidArgument(
                f"`{name}` requires an agent that is a model, but this agent is a program",
                value=name,
                remedy=f"remove {name}",
            )
    context = (f"{one.role}: {one.text()}" for one in asked.context if one.text())
    earlier = "\n\n".join(context)
    return (
        asked.instructions,
        f"Earlier in this conversation:\n\n{earlier}" if earlier else "",
        message.text(),
    )

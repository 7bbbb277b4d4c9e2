"""What executors read of a request that is begun from its beginning: whose run it is, what it is asked."""

import uuid

from postroom.contracts import executor
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import RunIdentity
from postroom.contracts.errors import InvalidActivation
from postroom.contracts.messages import storable


def identity_of(activation: RunActivation) -> RunIdentity:
    """Return which run it is, and where it comes from."""
    return executor.identity_of(activation, run_id=activation.run_id or f"run_{uuid.uuid4().hex}")


def prompt_of(activation: RunActivation) -> str:
    """Return what the run was asked: the texts of its messages, a blank line between two.

    Raises:
        InvalidActivation: there is no text in them.
    """
    texts = [text for message in activation.messages if (text := message.text()).strip()]
    if not texts:
        raise InvalidActivation(
            f"run {activation.run_id!r} was asked nothing that it can be told", value=activation.run_id
        )
    return storable("\n\n".join(texts))

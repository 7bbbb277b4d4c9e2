"""What executors read of a request that is begun from its beginning: whose run it is, what it is asked."""

import uuid

from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import RunIdentity
from postroom.contracts.errors import InvalidActivation
from postroom.contracts.messages import storable


def identity_of(activation: RunActivation) -> RunIdentity:
    """Return which run it is, and where it comes from."""
    trace = activation.trace
    return RunIdentity(
        thread_id=activation.thread_id,
        run_id=activation.run_id or f"run_{uuid.uuid4().hex}",
        agent_id=activation.agent_id or "default",
        parent_thread_id=trace.parent_thread_id,
        parent_run_id=trace.parent_run_id,
        dispatch_id=trace.dispatch_id,
        session_id=trace.session_id,
        transport_request_id=trace.transport_request_id,
        origin=trace.origin,
        run_mode=trace.run_mode,
        adapter=trace.adapter,
    )


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

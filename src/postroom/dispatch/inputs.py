"""Checks a submission and says in which mode it runs, before anything is looked up or written."""

from collections.abc import Sequence
from dataclasses import replace

from postroom.contracts.activation import RunActivation, RunMode, RunOrigin
from postroom.contracts.dispatch import LOWEST_PRIORITY
from postroom.contracts.errors import InvalidSubmission
from postroom.contracts.messages import Message, Role, storable
from postroom.dispatch.ids import Ids

_LONGEST_ID = 512


def validate_run_inputs(
    thread_id: str, messages: Sequence[Message], *, allow_empty: bool, new_id: Ids
) -> tuple[str, tuple[Message, ...]]:
    """Return the thread's id, trimmed or new when it is blank, and the messages, each with an id.

    Raises:
        InvalidSubmission: there is no message and no decision, or a message cannot be accepted.
    """
    if not messages and not allow_empty:
        raise InvalidSubmission("at least one message is required", value=thread_id)
    refuse_odd_id("thread id", thread_id)
    for message in messages:
        if message.id is not None:
            refuse_odd_id("message id", message.id)
            if not message.id.strip():
                raise InvalidSubmission("a message id must not be blank", value=message.text()[:80])
        if any(storable(block.text) != block.text for block in message.content):
            raise InvalidSubmission("a message holds half of a character", value=message.id)
        if message.role is Role.USER and not message.content:
            raise InvalidSubmission("a message must not be empty", value=message.id)
    accepted = tuple(one if one.id else replace(one, id=new_id()) for one in messages)
    if len({one.id for one in accepted}) != len(accepted):
        raise InvalidSubmission("a message id comes twice", value=[one.id for one in accepted])
    return thread_id.strip() or new_id(), accepted


def refuse_odd_id(name: str, value: str) -> None:
    """Refuse an id that not every store can keep.

    Raises:
        InvalidSubmission: it is too long, or holds NUL or half of a character.
    """
    if len(value) > _LONGEST_ID or "\x00" in value or storable(value) != value:
        raise InvalidSubmission(
            f"the {name} has at most {_LONGEST_ID} characters, none of them NUL or half of one",
            value=storable(value[:80]),
        )


def refuse_bad_delivery(request: RunActivation) -> None:
    """Refuse delivery options that no dispatch can have.

    Raises:
        InvalidSubmission: a blank id, or a number outside its range.
    """
    options, hints = request.delivery, request.hints
    ids = {
        "run id": hints.run_id,
        "dispatch id": hints.dispatch_id,
        "run id to continue": request.continue_run_id,
        "agent id": request.agent_id,
        "dedupe key": options.dedupe_key,
        "tenant": options.tenant or None,
    }
    for name, value in ids.items():
        if value is not None:
            refuse_odd_id(name, value)
            if not value.strip():
                raise InvalidSubmission(f"the {name} must not be blank")
    if not 0 <= options.priority <= LOWEST_PRIORITY:
        raise InvalidSubmission(f"the priority is from 0 to {LOWEST_PRIORITY}", value=options.priority)
    if options.delay_ms < 0:
        raise InvalidSubmission("the delay must not be negative", value=options.delay_ms)
    if options.max_attempts is not None and options.max_attempts < 1:
        raise InvalidSubmission("there must be at least one attempt", value=options.max_attempts)
    if any(not call.strip() or not resume.decision_id.strip() for call, resume in request.decisions):
        raise InvalidSubmission("a decision needs the id of its tool call and one of its own")


def normalized_mode(request: RunActivation, *, background: bool) -> RunActivation:
    """Return the request in the mode it is meant in; only `foreground`, the default, is ever replaced."""
    if request.trace.run_mode is not RunMode.FOREGROUND:
        return request
    if request.decisions or request.continue_run_id:
        return request.traced(run_mode=RunMode.RESUME)
    if request.trace.origin is RunOrigin.INTERNAL:
        return request.traced(run_mode=RunMode.INTERNAL_WAKE)
    return request.traced(run_mode=RunMode.SCHEDULED) if background else request

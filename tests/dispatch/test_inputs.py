"""What a submission must bring: a thread's id is mended, messages are demanded, decisions are enough."""

import uuid
from random import Random

import pytest

from postroom.contracts.activation import AdapterKind, RunActivation, RunMode
from postroom.contracts.clock import time_ordered_ids
from postroom.contracts.errors import InvalidSubmission
from postroom.contracts.messages import Message
from postroom.dispatch.planning import validate_run_inputs
from postroom.testing import ManualClock


def checked(
    thread_id: str, *texts: str, allow_empty: bool = False, clock: ManualClock | None = None
) -> tuple[str, list[str]]:
    """Return the thread's id and the texts as they are accepted."""
    messages = [Message.user(text) for text in texts]
    new_id = time_ordered_ids(clock or ManualClock(), Random(1))
    accepted_id, accepted = validate_run_inputs(thread_id, messages, allow_empty=allow_empty, new_id=new_id)
    ids = [message.id for message in accepted]
    assert all(ids)
    assert len(set(ids)) == len(texts)
    return accepted_id, [message.text() for message in accepted]


def test_run_request_fields() -> None:
    request = RunActivation.new("t-1", ["hello"], agent_id="agent-a")
    assert request.thread_id == "t-1"
    assert request.agent_id == "agent-a"
    assert [message.text() for message in request.messages] == ["hello"]
    assert request.trace.run_mode is RunMode.FOREGROUND
    assert request.trace.adapter is AdapterKind.INTERNAL
    assert (request.run_id, request.continue_run_id, request.decisions) == (None, None, ())


def test_run_spec_validation_empty_messages_errors() -> None:
    with pytest.raises(InvalidSubmission, match="at least one message is required") as refused:
        checked("thread-1")
    assert refused.value.describe() == "validation error: at least one message is required"


def test_run_spec_validation_allows_decision_only_resume() -> None:
    assert checked("thread-1", allow_empty=True) == ("thread-1", [])


def test_run_spec_validation_blank_thread_id_generates_new() -> None:
    made = {checked(blank, "hi", clock=ManualClock(number))[0] for number, blank in enumerate((" ", "\t\n"))}
    assert len(made) == 2
    assert all(thread_id == thread_id.strip() != "" for thread_id in made)


def test_run_spec_validation_trims_thread_id() -> None:
    assert checked(" my-thread ", "hi") == ("my-thread", ["hi"])


def test_validate_run_inputs_preserves_normal_thread_id() -> None:
    assert checked("my-thread", "hi") == ("my-thread", ["hi"])


def test_validate_run_inputs_multiple_messages() -> None:
    assert checked("t", "a", "b", "c") == ("t", ["a", "b", "c"])


def test_validate_run_inputs_empty_string_generates_uuid() -> None:
    thread_id, _ = checked("", "hi")
    assert len(thread_id) == 36
    assert uuid.UUID(thread_id).version == 7

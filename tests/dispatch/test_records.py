"""Values that callers see: requests as they are accepted and stored, dispatches, results, outcomes, errors, settings."""

import dataclasses
import json
import uuid
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_room import (
    ACKED,
    CLAIMED,
    QUEUED,
    AgentUnknown,
    Blocking,
    Counting,
    Deaf,
    Longest,
    Noop,
    ask,
    make_resume,
    make_run,
    rate_limited,
    seed_messages,
    waiting_run,
)
from postroom.contracts import activation, errors, runs
from postroom.contracts.activation import AdapterKind, RunActivation, RunMode, RunRequestOrigin
from postroom.contracts.clock import time_ordered_ids
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.executor import AgentRunResult, ResolvedRunPlan
from postroom.contracts.limits import Budget, BudgetScope, BudgetWindow, Limit, LimitScope
from postroom.contracts.messages import Message, SeqRange
from postroom.contracts.registry import PinnedEntry, RegistrySet
from postroom.contracts.tools import ToolCallResume, ToolDescriptor
from postroom.dispatch.completion import (
    COMPLETED,
    MailboxRunOutcome,
    OutcomeKind,
    backoff_ms,
    classify,
    retry_delay_ms,
)
from postroom.dispatch.config import MailboxConfig, MailboxLifecycleConfig, StartupRecoveryConfig
from postroom.dispatch.recovery import claim_error_pause_ms
from postroom.dispatch.submission import MailboxDispatchStatus, MailboxSubmitResult, validate_run_inputs
from postroom.dispatch.worker import DispatchAttempt, rebuild
from postroom.stores.codec import decode, encode
from postroom.stores.memory import MemoryRunStores
from postroom.stores.registry import MemoryRegistryStore
from postroom.testing import ManualClock
from postroom.testing.run_faults import failing_changes
from table_rows import each_row

# What a submission must bring.


def checked(thread_id, *texts, allow_empty=False, clock=None):
    """Return the thread's id and the texts as they are accepted."""
    new_id = time_ordered_ids(clock or ManualClock(), Random(1))
    messages = [Message.user(text) for text in texts]
    accepted_id, accepted = validate_run_inputs(thread_id, messages, allow_empty=allow_empty, new_id=new_id)
    ids = {message.id for message in accepted}
    assert len(ids) == len(texts)
    assert all(ids)
    return accepted_id, [message.text() for message in accepted]


def test_run_request_fields():
    request = RunActivation.new("t-1", ["hello"], agent_id="agent-a")
    assert (request.thread_id, request.agent_id) == ("t-1", "agent-a")
    assert [message.text() for message in request.messages] == ["hello"]
    assert (request.trace.run_mode, request.trace.adapter) == (RunMode.FOREGROUND, AdapterKind.INTERNAL)
    assert (request.run_id, request.continue_run_id, request.decisions) == (None, None, ())


def test_run_spec_validation_empty_messages_errors():
    with pytest.raises(errors.InvalidSubmission) as refused:
        checked("thread-1")
    assert refused.value.describe() == "validation error: at least one message is required"


def test_run_spec_validation_allows_decision_only_resume():
    assert checked("thread-1", allow_empty=True) == ("thread-1", [])


def test_run_spec_validation_blank_thread_id_generates_new():
    made = {checked(blank, "hi", clock=ManualClock(number))[0] for number, blank in enumerate((" ", "\t\n"))}
    assert len(made) == 2
    assert all(thread_id == thread_id.strip() != "" for thread_id in made)


def test_run_spec_validation_trims_thread_id():
    assert checked(" my-thread ", "hi") == ("my-thread", ["hi"])


def test_validate_run_inputs_preserves_normal_thread_id():
    assert checked("my-thread", "hi") == ("my-thread", ["hi"])


def test_validate_run_inputs_multiple_messages():
    assert checked("t", "a", "b", "c") == ("t", ["a", "b", "c"])


def test_validate_run_inputs_empty_string_generates_uuid():
    thread_id, _ = checked("", "hi")
    assert len(thread_id) == 36
    assert uuid.UUID(thread_id).version == 7


# What is kept of a request with its run, and what comes back of it.

HI = Message.user("hi", id="message-1")
TOOL = ToolDescriptor(id="ft1", name="FT1", description="desc")


async def prepared_run(room, request):
    """Prepare a request and return its run as it is stored."""
    run = await room.run(await room.mailbox(AgentUnknown()).prepare_run_for_dispatch(request))
    assert run.activation is not None
    return run


def stored(request):
    """Return the run of a request as it is stored."""
    kept = request.snapshot(trigger_message_ids=(), covered=None)
    return encode(
        runs.RunRecord(run_id="r1", thread_id=request.thread_id, resolution_id="p1", activation=kept)
    )


async def stored_and_read(request):
    """Return a request as its executor gets it, from the stored run alone."""
    run = decode(runs.RunRecord, stored(request), where="body")
    dispatch = RunDispatch.queued("d1", run.thread_id, run.run_id, created_at=0)
    return await rebuild(MemoryRunStores().threads, dispatch, run, instance_id="i1")


def of_an_agent(**traced):
    return RunActivation.new("t", [HI], agent_id="a1").traced(origin=RunRequestOrigin.A2A.inside, **traced)


async def test_prepare_run_preserves_request_extras_on_run_snapshot(room):
    overrides = activation.InferenceOverride(temperature=0.25, max_tokens=7)
    options = activation.RunOptions(overrides=overrides, frontend_tools=(TOOL,))
    run = await prepared_run(
        room, RunActivation(thread_id="t", messages=(HI,), agent_id="a1", options=options)
    )
    assert (run.activation.options, run.agent_id) == (options, "a1")


async def test_run_request_extras_serde_roundtrip():
    overrides = activation.InferenceOverride(temperature=0.25)
    options = activation.RunOptions(frontend_tools=(TOOL,), overrides=overrides)
    request = RunActivation(thread_id="t1", options=options)
    parsed = await stored_and_read(request.traced(run_mode=RunMode.SCHEDULED, adapter=AdapterKind.ACP))
    assert (parsed.options, parsed.decisions) == (options, ())
    assert (parsed.trace.run_mode, parsed.trace.adapter) == (RunMode.SCHEDULED, AdapterKind.ACP)


def test_run_request_extras_empty_returns_none():
    run = decode(runs.RunRecord, stored(ask("t1", "hi")), where="body")
    assert run.activation == activation.RunActivationSnapshot(thread_id="t1")


async def test_run_request_extras_apply_to_request():
    traced = {
        "parent_thread_id": "parent-thread",
        "transport_request_id": "transport-1",
        "adapter": AdapterKind.AG_UI,
    }
    request = RunActivation(thread_id="t1", options=activation.RunOptions(frontend_tools=(TOOL,)))
    applied = await stored_and_read(request.traced(**traced).continuing("r1"))
    assert applied.options.frontend_tools == (TOOL,)
    assert (applied.hints.run_id, applied.hints.dispatch_id, applied.continue_run_id) == ("r1", "d1", "r1")
    assert {name: getattr(applied.trace, name) for name in traced} == traced
    assert applied.trace.run_mode is RunMode.RESUME


async def test_prepare_run_round_trips_parent_thread_id(room):
    request = RunActivation.new("thread-child", [HI]).traced(parent_thread_id="thread-parent")
    with pytest.raises(errors.UnknownThread):
        await room.mailbox(AgentUnknown()).prepare_run_for_dispatch(request)
    assert await room.stores.threads.load_thread("thread-child") is None
    await room.stores.threads.save_thread(runs.Thread(id="thread-parent"))
    run = await prepared_run(room, request)
    child = await room.stores.threads.load_thread("thread-child")
    assert run.activation.trace.parent_thread_id == child.parent_thread_id == "thread-parent"


async def test_prepare_run_preserves_origin_metadata(room):
    run = await prepared_run(room, of_an_agent(parent_run_id="parent-run-1"))
    assert RunRequestOrigin.of(run.activation.trace.origin) is RunRequestOrigin.A2A
    assert run.activation.trace.origin is activation.RunOrigin.SUBAGENT
    assert run.parent_run_id == "parent-run-1"


async def test_prepare_run_defaults_origin_to_user(room):
    run = await prepared_run(room, RunActivation.new("t", [HI]))
    assert RunRequestOrigin.of(run.activation.trace.origin) is RunRequestOrigin.USER
    assert run.parent_run_id is run.activation.trace.parent_run_id is None


async def test_prepare_run_origin_a2a_roundtrip(room):
    """The origin comes back to the executor that runs it, from the stored run alone."""
    executor = Counting()
    mailbox = room.mailbox(executor)
    run_of = await mailbox.submit_background(of_an_agent(parent_run_id="parent-123"))
    await mailbox.settled()
    run, [executed] = await room.run(run_of), executor.activations
    assert run.parent_run_id == executed.trace.parent_run_id == "parent-123"
    for trace in (run.activation.trace, executed.trace):
        assert RunRequestOrigin.of(trace.origin) is RunRequestOrigin.A2A


@each_row(
    "corrupt",
    [
        {"options": {"overrides": "not-an-object"}, "seeded_decisions": 42},
        {"options": {"overrides": "not-an-object"}},
        {"seeded_decisions": 42},
        {"seeded_decisions": [["call-1"]]},
        {"options": {"frontend_tools": [{"id": "ft1"}]}},
        {"trace": {"run_mode": "sideways"}},
        {"trace": {"adapter": None}},
        {"thread_id": " "},
        {"trace": None},
    ],
)
def test_run_request_extras_corrupt_json_returns_error(corrupt):
    body = json.loads(stored(ask("t1", "hi")))
    body["activation"].update(corrupt)
    with pytest.raises(errors.StoreCorrupt):
        decode(runs.RunRecord, json.dumps(body), where="body")


async def test_build_dispatch_extras_roundtrip_with_decisions():
    decisions = (("call-1", ToolCallResume(decision_id="d-1", result={"approved": True})),)
    assert (await stored_and_read(RunActivation.new("t", ["hi"], decisions=decisions))).decisions == decisions


# The run-first write: what a prepared run looks like before anything delivers it.


async def test_prepare_run_for_dispatch_precreates_created_run_and_thread_projection(room):
    message = Message.user("plan this", id="message-created")
    request = RunActivation.new("t", [message], agent_id="agent-created").traced(
        transport_request_id="transport"
    )
    prepared = await room.mailbox(Noop()).prepare_run_for_dispatch(request)
    assert prepared.run_id
    assert prepared.activation.hints.run_id == prepared.run_id
    run = await room.run(prepared)
    assert (run.status, run.agent_id) == (runs.RunStatus.CREATED, "agent-created")
    assert run.activation.trigger_message_ids == run.input.trigger_message_ids == ("message-created",)
    assert run.activation.trace.transport_request_id == "transport"
    assert (run.input.thread_id, run.input.range) == ("t", SeqRange(from_seq=1, to_seq=1))
    assert await room.stores.threads.load_messages("t") == (message,)
    thread = await room.stores.threads.load_thread("t")
    assert thread.open_run_id == thread.latest_run_id == prepared.run_id
    assert thread.active_run_id is None
    assert run.dispatch_id == prepared.dispatch_id != prepared.run_id
    assert await room.rows() == {}


async def test_prepare_run_for_dispatch_inherits_previous_runtime_state(room):
    state = runs.PersistedState(revision=7, extensions={"remote": {"context_id": "remote-ctx-1"}})
    previous = make_run("run-prev", "t", runs.RunStatus.DONE, agent_id="agent-prev", state=state)
    await seed_messages(room.stores, previous, Message.user("first"))
    request = RunActivation.new("t", [Message.user("second", id="message-second")])
    run = await room.run(await room.mailbox(Noop()).prepare_run_for_dispatch(request))
    assert run.run_id != "run-prev"
    assert (run.status, run.agent_id, run.state) == (runs.RunStatus.CREATED, "agent-prev", state)
    assert run.input.range == SeqRange(from_seq=1, to_seq=2)
    assert run.input.trigger_message_ids == ("message-second",)
    assert await room.run("run-prev") == previous


# What a run is pinned to: a pin that stands for nothing fails closed.


class Resolving(Deaf):
    """Accepts every pin unchanged; without one, its own."""

    def __init__(self):
        super().__init__()
        self.asked = []

    async def resolve(self, activation, *, pinned):
        self.asked.append(pinned)
        return ResolvedRunPlan(resolution_id=pinned or "fallback-resolution")


def pinned(room, registry=None):
    return room.mailbox(Noop()).with_pinned_registry(registry or MemoryRegistryStore(), "default")


async def test_try_with_pinned_registry_rejects_invalid_scope(room):
    mailbox = room.mailbox(Noop())
    for scope in (" ", "", "a\nb", "s" * 513):
        with pytest.raises(errors.InvalidRecord):
            mailbox.with_pinned_registry(MemoryRegistryStore(), scope)
    assert await mailbox.materialize_pinned_registry_set("not-a-version") is None, "nothing was attached"


async def test_materialize_pinned_registry_rejects_invalid_resolution_id(room):
    mailbox = pinned(room)
    for resolution_id in ("not-a-version", "", " 1", "-1", "1.0", "0x1", "\u0661"):
        with pytest.raises(errors.InternalError, match="invalid pinned registry resolution id") as refused:
            await mailbox.materialize_pinned_registry_set(resolution_id)
        assert refused.value.describe().startswith("internal error: ")
    with pytest.raises(errors.InternalError):
        await mailbox.materialize_pinned_registry_set("9" * 5_000)


async def resolved(room, request):
    """Return the run of a request, its activation, and what its executor was asked to resolve."""
    executor = Resolving()
    prepared = await room.mailbox(executor).prepare_run_for_dispatch(request)
    return await room.run(prepared), prepared.activation, executor.asked


async def test_prepare_run_for_dispatch_persists_resolved_resolution_id(room):
    run, activated, asked = await resolved(room, RunActivation.new("t", [HI]))
    assert run.resolution_id == activated.hints.resolution_id == run.run_id
    assert asked == [run.run_id]


async def test_prepare_run_for_dispatch_uses_explicit_resolution_id_hint(room):
    run, _, asked = await resolved(room, RunActivation.new("t", [HI]).hinted(resolution_id="42"))
    assert (run.resolution_id, asked) == ("42", ["42"])


async def test_materialize_pinned_registry_set_fails_closed_for_missing_numeric_snapshot(room):
    async def publish(prompt):
        value = {"prompt": prompt}
        entry = PinnedEntry(kind="agent", id="writer", version=1, value=value, content_hash="sha256:0")
        await registry.publish("default", (entry,))

    registry = MemoryRegistryStore()
    mailbox = pinned(room, registry)
    with pytest.raises(errors.InternalError, match="invalid pinned registry resolution id"):
        await mailbox.materialize_pinned_registry_set("draft-run-id")
    for number in range(1, 43):
        with pytest.raises(errors.InternalError, match="missing registry version publication/default@42"):
            await mailbox.materialize_pinned_registry_set("42")
        await publish(f"prompt {number}")
    await publish("newer")
    assert await mailbox.materialize_pinned_registry_set("42") == RegistrySet(
        agents={"writer": {"prompt": "prompt 42"}}
    )


async def test_work_that_the_mailbox_submits_itself_is_pinned_to_the_latest_publication(room):
    registry = MemoryRegistryStore()
    value = {"prompt": "as published"}
    entry = PinnedEntry(kind="agent", id="agent", version=1, value=value, content_hash="sha256:0")
    published = await registry.publish("default", (entry,))
    await room.place(waiting_run("w", "t"))
    executor = Counting()
    mailbox = room.mailbox(executor).with_pinned_registry(registry, "default")
    assert await mailbox.recover() == 1
    await mailbox.settled()
    run = await room.run("w")
    assert (run.status, run.resolution_id) == (runs.RunStatus.DONE, str(published.publication_id))
    assert executor.activations[0].control.registry.agents == {"agent": value}


# Results of submissions, dispatches as they are built, errors as they read.


def test_dispatch_status_enum_variants():
    named = {status.name: status.value for status in MailboxDispatchStatus}
    assert named == {"RUNNING": "running", "QUEUED": "queued"}


def test_dispatch_status_queued_zero():
    assert MailboxDispatchStatus("running") is MailboxDispatchStatus.RUNNING
    assert MailboxDispatchStatus("queued") is MailboxDispatchStatus.QUEUED
    kept = {"Queued", "Claimed", "Acked", "Cancelled", "Superseded", "DeadLetter"}
    assert {status.value for status in RunDispatchStatus} == kept
    assert {status for status in RunDispatchStatus if not status.is_terminal} == {QUEUED, CLAIMED}


async def test_mailbox_construction_depends_on_runtime_boundary_not_agent_runtime(room):
    """Any executor with the port's methods works; dispatches are claimed in the consumer's name."""
    with pytest.raises(errors.InvalidRecord):
        room.mailbox(Noop(), consumer_id=" ")
    executor = Blocking()
    mailbox = room.mailbox(executor, consumer_id="decoupled-consumer")
    assert mailbox.consumer_id == "decoupled-consumer"
    submitted = await mailbox.submit_background(ask())
    row = await room.row(submitted)
    assert (row.status, row.claimed_by) == (CLAIMED, "decoupled-consumer")
    executor.release.set()
    await mailbox.settled()
    assert [one.run_id for one in executor.activations] == [submitted.run_id]


def test_two_mailboxes_that_were_given_no_names_have_different_ones(room):
    first, second = (room.mailbox(Counting(), consumer_id=None) for _ in range(2))
    assert first.consumer_id != second.consumer_id


def test_mailbox_error_display():
    assert errors.InvalidSubmission("test").describe() == "validation error: test"
    assert errors.InternalError("oops").describe() == "internal error: oops"


async def test_mailbox_error_store_variant(room):
    """The mailbox raises a store's failure unchanged."""
    of_stores = [kind for kind in errors.all_errors() if issubclass(kind, errors.StoreError)]
    assert {kind("x").describe() for kind in of_stores} == {"store error: x"}
    mailbox = room.mailbox(Noop(), stores=failing_changes(room.stores, before={"submit": [True]}))
    with pytest.raises(errors.StoreError) as failure:
        await mailbox.submit_background(ask())
    assert failure.value.describe() == "store error: injected submit failure"


async def test_mailbox_submit_result_fields(room):
    mailbox = room.mailbox(Counting())
    submitted = await mailbox.submit_background(ask("thread-1", "hi"))
    running = MailboxDispatchStatus.RUNNING
    ids = {"dispatch_id": submitted.dispatch_id, "run_id": submitted.run_id, "thread_id": "thread-1"}
    assert submitted == MailboxSubmitResult(**ids, status=running, joined=False)
    await mailbox.settled()
    [row] = await mailbox.list_dispatches("thread-1")
    run = await room.stores.threads.latest_run("thread-1")
    assert {name: getattr(row, name) for name in ids} == {name: getattr(run, name) for name in ids} == ids


async def test_instants_of_runs_messages_and_dispatches_are_of_one_unit(room):
    mailbox = room.mailbox(Counting())
    result = await mailbox.submit_background(ask())
    await mailbox.settled()
    row, run = await room.row(result), await room.run(result)
    thread = await room.stores.threads.load_thread("t")
    ids = [*run.input.trigger_message_ids, *run.output_message_ids]
    asked, said = await room.stores.threads.load_message_records("t", ids)
    instants = {one.created_at for one in (row, run, thread, asked, said)}
    instants |= {
        row.completed_at,
        run.started_at,
        run.finished_at,
        run.updated_at,
        thread.latest_run_updated_at,
    }
    assert instants == {room.clock.now()}


async def test_build_dispatch_sets_correct_fields(room):
    mailbox, now = room.mailbox(Noop()), room.clock.now()
    request = ask("thread-42", "test").hinted(run_id="run-42")
    dispatch = mailbox.build_dispatch(request)
    assert (dispatch.thread_id, dispatch.run_id, dispatch.status) == ("thread-42", "run-42", QUEUED)
    assert (dispatch.attempt_count, dispatch.max_attempts, dispatch.priority) == (0, 5, 128)
    assert dispatch.dispatch_epoch == 0
    unset = (dispatch.claim_token, dispatch.claimed_by, dispatch.lease_until, dispatch.last_error)
    assert unset == (None,) * 4
    assert (dispatch.created_at, dispatch.available_at, dispatch.updated_at) == (now, 0, now)
    assert dispatch.dispatch_id != mailbox.build_dispatch(request).dispatch_id
    hinted = mailbox.build_dispatch(request.hinted(dispatch_id="dispatch-42").delivered(priority=3))
    assert (hinted.dispatch_id, hinted.run_id, hinted.priority) == ("dispatch-42", "run-42", 3)


async def test_build_dispatch_requires_prepared_run_id(room):
    with pytest.raises(errors.InternalError) as refused:
        room.mailbox(Noop()).build_dispatch(ask())
    assert refused.value.describe() == "internal error: run_id missing after preparation"


class Deciding(Deaf):
    """Takes decisions for one run."""

    decided = ()

    def send_decision(self, id, tool_call_id, resume):
        if id == "known":
            self.decided += ((tool_call_id, resume),)
        return id == "known"


async def test_send_decision_unknown_id_returns_false(room):
    executor = Deciding()
    mailbox = room.mailbox(executor)
    assert mailbox.send_decision("nonexistent", "tc-1", make_resume()) is False
    assert await mailbox.send_decision_live("nonexistent", "tc-1", make_resume()) is False
    assert executor.decided == ()
    assert mailbox.send_decision("known", "tc-1", make_resume()) is True
    assert executor.decided == (("tc-1", make_resume()),)


# What the end of an execution means for its dispatch: consumed, tried again, or given up.

TRANSIENT, PERMANENT = OutcomeKind.TRANSIENT_ERROR, OutcomeKind.PERMANENT_ERROR
INFERENCE = dict.fromkeys(
    [
        errors.ProviderFailed,
        errors.RateLimited,
        errors.Overloaded,
        errors.InferenceTimeout,
        errors.StreamInterrupted,
        errors.InferenceFailed,
    ],
    TRANSIENT,
) | dict.fromkeys(
    [
        errors.Unauthorized,
        errors.ContextOverflow,
        errors.RequestRefused,
        errors.ModelNotFound,
        errors.NoModelEndpoint,
        errors.ContentFiltered,
    ],
    PERMANENT,
)


def assert_outcome(error, kind):
    """The error has this outcome, which keeps its text."""
    outcome = classify(error)
    assert (outcome.kind, outcome.error) == (kind, error.describe())
    assert error.message in outcome.error


def test_mailbox_run_outcome_debug():
    assert "COMPLETED" in repr(COMPLETED)
    for kind, name, error in (
        (TRANSIENT, "TRANSIENT_ERROR", "oops"),
        (PERMANENT, "PERMANENT_ERROR", "fatal"),
    ):
        shown = repr(MailboxRunOutcome(kind=kind, error=error))
        assert name in shown
        assert error in shown


def test_mailbox_run_outcome_metric_labels_are_stable():
    labels = [MailboxRunOutcome(kind=kind, error="x").metric_label for kind in (TRANSIENT, PERMANENT)]
    assert [COMPLETED.metric_label, *labels] == ["completed", "transient_error", "permanent_error"]
    assert len(OutcomeKind) == 3


def test_classify_error_ok_is_completed():
    reasons = runs.TerminationReason
    ends = (reasons.natural_end(), reasons.suspended(), reasons.cancelled(), reasons.error("inside the run"))
    for end in ends:
        assert (
            classify(AgentRunResult(run_id="run-1", response="done", termination=end, steps=1)) == COMPLETED
        )
    assert COMPLETED.kind is OutcomeKind.COMPLETED


def test_classify_error_thread_already_running_is_permanent():
    assert_outcome(errors.ThreadAlreadyRunning("thread 't1' runs already", value="t1"), PERMANENT)


def test_classify_error_agent_not_found_is_permanent():
    assert_outcome(errors.AgentNotFound("agent 'missing' is not registered", value="missing"), PERMANENT)


def test_classify_error_resolve_failed_is_permanent():
    assert_outcome(errors.ResolveFailed("not found"), PERMANENT)


def test_classify_error_storage_error_is_transient():
    for kind in errors.all_errors():
        if issubclass(kind, errors.StoreError):
            assert_outcome(kind("the store failed"), TRANSIENT)


def test_classify_error_inference_failed_is_transient():
    assert_outcome(errors.InferenceFailed("timeout"), TRANSIENT)


def test_classify_error_invalid_activation_is_permanent():
    assert_outcome(errors.InvalidActivation("blank thread"), PERMANENT)


def test_classify_error_permanent_inference_error_is_permanent():
    assert_outcome(errors.Unauthorized("403 pre_consume_token_quota_failed"), PERMANENT)


def test_classify_error_context_overflow_is_permanent():
    assert_outcome(errors.ContextOverflow("prompt is too long"), PERMANENT)


def test_classify_error_model_not_found_is_permanent():
    assert_outcome(errors.ModelNotFound("404 unknown model"), PERMANENT)


def test_classify_error_transient_inference_error_is_transient():
    assert_outcome(errors.RateLimited("429 too many requests"), TRANSIENT)
    assert_outcome(errors.ProviderFailed("502 bad gateway"), TRANSIENT)


def test_classify_error_covers_all_inference_variants():
    kinds = {kind for kind in errors.all_errors() if issubclass(kind, errors.InferenceError)}
    assert kinds - {errors.InferenceError} == INFERENCE.keys(), "a variant was added: say what it means here"
    for kind, expected in INFERENCE.items():
        assert kind.retryable is (expected is TRANSIENT), kind
        assert_outcome(kind("what the provider said"), expected)


def test_classify_error_phase_error_is_completed():
    assert classify(errors.PhaseError("unknown state key 'bad'")) == COMPLETED


def test_classify_error_invalid_resume_is_completed():
    assert classify(errors.InvalidResume("bad resume")) == COMPLETED


@given(st.text(), st.none() | st.integers(0, 10_000), st.sampled_from(list(INFERENCE)))
def test_classify_error_always_agrees_with_is_retryable(message, retry_after_ms, make):
    error = make(message, retry_after_ms=retry_after_ms)
    outcome = classify(error)
    assert outcome.kind is (TRANSIENT if error.retryable else PERMANENT)
    assert outcome.error.endswith(message)
    assert outcome.retry_after_ms == retry_after_ms


def test_what_says_nothing_about_trying_again_is_tried_again():
    outcome = classify(ValueError("who knows"))
    assert (outcome.kind, outcome.error) == (TRANSIENT, "ValueError: who knows")


# What a mailbox is set to.

BACKOFF = {1: 250, 2: 500, 3: 1_000, 4: 2_000, 5: 4_000, 6: 8_000, 7: 16_000}


def settings_of(config, names):
    return {name: getattr(config, name) for name in names}


def test_mailbox_config_defaults():
    expected = {
        "lease_ms": 30_000,
        "suspended_lease_ms": 600_000,
        "lease_renewal_interval": timedelta(seconds=10),
        "sweep_interval": timedelta(seconds=30),
        "gc_interval": timedelta(seconds=60),
        "gc_ttl": timedelta(hours=24),
        "default_max_attempts": 5,
        "default_retry_delay_ms": 250,
        "max_retry_delay_ms": 30_000,
    }
    assert settings_of(MailboxConfig(), expected) == expected


def test_mailbox_lifecycle_config_defaults():
    config = MailboxLifecycleConfig()
    once = StartupRecoveryConfig(max_attempts=1, retry_delay=timedelta(milliseconds=250))
    assert (config.startup_delay, config.startup_recovery) == (timedelta(0), once)
    assert config.maintenance_callback is None


def test_a_setting_below_what_it_may_be_or_of_another_type_is_refused_by_name():
    for setting, value, told in (
        ("lease_ms", 0, ""),
        ("lease_retry_ms", 0, ""),
        ("poll_interval", timedelta(0), ""),
        ("default_max_attempts", 0, ""),
        ("max_run_ms", 0, ""),
        ("gc_ttl", timedelta(seconds=-1), ""),
        ("max_queued_per_thread", -1, ""),
        ("drain_grace", timedelta(microseconds=-1), ""),
        ("max_run_ms", "x", "an integer or None, not str"),
        ("drain_grace", "1", "a number of seconds or a timedelta, not str"),
        ("drain_grace", -1, ""),
        ("lease_ms", True, "an integer, not bool"),
        ("lease_ms", None, "an integer, not NoneType"),
        ("poll_interval", float("nan"), "a number of seconds or a timedelta, not float"),
        ("poll_interval", 0, ""),
        ("outage", True, "a number of seconds or a timedelta, not bool"),
        ("pending_zone", "no", "True or False, not str"),
        ("max_concurrent_runs", 2.5, "an integer, not float"),
    ):
        with pytest.raises(
            errors.ConfigError, match=f"^{setting} must be {told}" if told else setting
        ) as caught:
            MailboxConfig(**{setting: value})
        assert not told or caught.value.value == repr(value)
    config = MailboxConfig(poll_interval=0.1, outage=5)
    assert (config.poll_interval, config.outage_ms) == (timedelta(milliseconds=100), 5_000)
    config = MailboxConfig(max_concurrent_runs=0, drain_grace=timedelta(0), max_queued_per_thread=None)
    assert (config.max_concurrent_runs, config.max_queued_per_thread) == (0, None)


def test_what_is_no_budget_and_no_limit_is_refused_and_kinds_may_be_given_by_their_names():
    everywhere = BudgetScope.ALL
    for made in (
        lambda: Budget(per="nobody", runs=1),
        lambda: Budget(per=everywhere, window="week", runs=1),
        lambda: Budget(per=everywhere, runs="5"),
        lambda: Budget(per=everywhere, runs=1, zone=None),
        lambda: Limit(per="foo", at_once=1),
        lambda: Limit(per=LimitScope.ALL, at_once="3"),
        lambda: Limit(per=LimitScope.ALL, starts=1, period="5"),
        lambda: MailboxConfig(limits=Limit(per=LimitScope.ALL, at_once=1)),
        lambda: MailboxConfig(budgets=("x",)),
    ):
        with pytest.raises(errors.ConfigError):
            made()
    assert Budget(per="all", window="day", runs=1) == Budget(per=everywhere, window=BudgetWindow.DAY, runs=1)
    assert Limit(per="key", at_once=1) == Limit(per=LimitScope.KEY, at_once=1)


def test_dispatch_signal_blocked_nack_delay_backs_off_and_caps():
    assert claim_error_pause_ms(None) == 500
    pauses = [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]
    assert [claim_error_pause_ms(attempts) for attempts in (*range(1, 9), 100)] == pauses


async def test_mailbox_config_custom_values(room):
    """The values are kept, and are those that a dispatch is claimed, renewed, retried and removed by."""
    given = {
        "lease_ms": 5_000,
        "suspended_lease_ms": 60_000,
        "lease_renewal_interval": timedelta(seconds=2),
        "sweep_interval": timedelta(seconds=5),
        "gc_interval": timedelta(seconds=10),
        "gc_ttl": timedelta(hours=1),
        "default_max_attempts": 3,
        "default_retry_delay_ms": 500,
        "max_retry_delay_ms": 60_000,
    }
    config = MailboxConfig(**given)
    assert settings_of(config, given) == given
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lease_ms = 1
    assert [backoff_ms(config, attempt) for attempt in (1, 2, 7)] == [500, 1_000, 32_000]

    executor, began = Blocking(), room.clock.now()
    mailbox = room.mailbox(executor, config=config)
    submitted = await mailbox.submit_background(ask())
    await executor.started.get()
    row = await room.row(submitted)
    assert (row.max_attempts, row.lease_until) == (3, began + 5_000)
    room.passes(seconds=2)
    await room.until(submitted, lambda row: row.lease_until == began + 7_000)
    executor.release.set()
    await mailbox.settled()
    room.passes(hours=1)
    await mailbox.run_gc()
    assert (await room.row(submitted)).status is ACKED
    room.passes(milliseconds=1)
    await mailbox.run_gc()
    assert await room.rows() == {}


async def test_inline_claim_guard_is_reasonable(room):
    """Work that a caller waits for is claimed in the commit that stores it: no delay has to keep others off."""
    executor, thief = Blocking(), room.mailbox(Noop(), consumer_id="thief")
    mailbox = room.mailbox(executor, consumer_id="inline")
    result, _ = await mailbox.submit(ask())
    row = await room.row(result)
    assert (row.status, row.claimed_by) == (CLAIMED, "inline")
    assert (row.available_at, row.claimed_at) == (0, row.created_at)
    assert await thief.poll() == 0
    assert MailboxConfig().cancel_wait_ms < MailboxConfig().lease_ms, (
        "who waits for a run does so for less than a lease"
    )
    executor.release.set()
    await mailbox.settled()


async def test_nack_backoff_progression(room):
    """The table holds for the function, and for a dispatch that fails repeatedly."""
    assert {attempt: backoff_ms(MailboxConfig(), attempt) for attempt in BACKOFF} == BACKOFF
    mailbox = room.mailbox(rate_limited(), config=MailboxConfig(default_max_attempts=9), random=Longest())
    submitted = await mailbox.submit_background(ask())
    delays = {}
    for attempt in BACKOFF:
        await mailbox.settled()
        row = await room.row(submitted)
        assert (row.status, row.attempt_count) == (QUEUED, attempt)
        delays[attempt] = row.available_at - room.clock.now()
        room.clock.set(row.available_at - 1)
        assert await mailbox.try_dispatch_next("t") is DispatchAttempt.NO_ELIGIBLE
        room.clock.set(row.available_at)
        assert await mailbox.try_dispatch_next("t") is DispatchAttempt.CLAIMED
    assert delays == BACKOFF


def test_nack_backoff_caps_at_max():
    config = MailboxConfig(max_retry_delay_ms=5_000, default_retry_delay_ms=1_000)
    assert [backoff_ms(config, attempt) for attempt in range(1, 6)] == [1_000, 2_000, 4_000, 5_000, 5_000]


def test_nack_backoff_zero_attempt_is_base_delay():
    assert [backoff_ms(MailboxConfig(), attempt) for attempt in (-1, 0, 1)] == [250, 250, 250]


def test_nack_backoff_high_attempt_stays_capped():
    assert backoff_ms(MailboxConfig(), 100) == 16_000
    assert backoff_ms(MailboxConfig(max_retry_delay_ms=10_000), 100) == 10_000


def test_a_retry_is_spread_up_to_its_backoff_and_never_comes_before_it_was_asked_for():
    config, random = MailboxConfig(), Random(7)
    drawn = [retry_delay_ms(config, 3, random, retry_after_ms=None) for _ in range(200)]
    assert all(0 <= delay <= 1_000 for delay in drawn)
    assert len(set(drawn)) > 100
    assert {retry_delay_ms(config, 1, random, retry_after_ms=60_000) for _ in range(20)} == {60_000}

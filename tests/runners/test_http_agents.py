"""Agents that another server runs: a fake one on real sockets, and each thing that can go wrong between two."""

import asyncio
import json
import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom.contracts import errors
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.runners import HttpRunner
from postroom.contracts.runs import RunStatus
from postroom.contracts.signing import signature
from postroom.executors.remote import LARGEST_BODY
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from runners.fake_remote import CUT, SILENCE, FakeRemote, reply, says, sign
from runners.room import SECRET, RunnerRoom
from table_rows import each_row
from waking_room import number

TAKEN = reply(202)
OTHER = "a secret that nobody here knows"


def bo(remote: FakeRemote, **changes: Any) -> HttpRunner:
    return HttpRunner(**{"url": remote.url, "secret_env": "BO_SECRET", **changes})


def result(dispatch: str, **told: Any) -> bytes:
    return json.dumps({"kind": "result", "dispatch": dispatch, **told}).encode()


async def begun(room: RunnerRoom, remote: FakeRemote, *answers: Any, **changes: Any) -> str:
    """Make Bo begin a run at the other server; return its dispatch."""
    await room.employ(Bo=bo(remote, **changes))
    remote.answers = list(answers)
    await room.send("Ada", "Bo", body="Are the lights on?")
    await remote.come(1)
    return str(remote.runs[0].told["dispatch"])


async def give(room: RunnerRoom, dispatch: str, body: bytes | None = None, **told: Any) -> None:
    """Send a result of a dispatch, signed."""
    content = result(dispatch, **told) if body is None else body
    await room.results.take(dispatch, sign(SECRET, room.clock.now(), content), content)


async def status_of(room: RunnerRoom, dispatch: str) -> RunDispatchStatus:
    row = await room.runs.dispatches.load_dispatch(dispatch)
    assert row is not None
    return row.status


async def until(so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not so():
            await asyncio.sleep(0)


async def test_a_run_is_posted_signed_and_an_answer_at_once_is_mailed_back(
    room: RunnerRoom, remote: FakeRemote
) -> None:
    await room.employ(Bo=bo(remote))
    remote.answers = [says("They are on.")]
    sent = await room.send("Ada", "Bo", body="Are the lights on?")
    await room.turn()
    assert await room.texts("Ada") == [("Bo", "They are on.")]
    assert all(one["read_at"] for one in await room.inbox("Bo"))
    assert (await room.handled(number(sent), "Bo")).ended_at is not None
    [asked] = remote.asked
    told = asked.told
    assert "Are the lights on?" in told.pop("prompt")
    [run] = await room.runs_of()
    assert told == {
        **{"kind": "run", "dispatch": run.dispatch_id, "run": run.run_id, "thread": run.thread_id},
        **{"agent": "Bo@projects-shop", "timeout_ms": 1_800_000},
        "callback": f"http://127.0.0.1:8765/callbacks/{run.dispatch_id}",
    }
    expected = sign(SECRET, room.clock.now(), asked.body)
    assert {name: asked.headers[name.lower()] for name in expected} == expected
    assert asked.headers["idempotency-key"] == run.dispatch_id
    assert room.results.executing == 0


async def test_a_result_that_comes_later_is_durable_when_it_is_taken_and_counts_once(
    room: RunnerRoom, remote: FakeRemote
) -> None:
    dispatch = await begun(room, remote, TAKEN)
    assert await status_of(room, dispatch) is RunDispatchStatus.CLAIMED
    await asyncio.gather(*(give(room, dispatch, text="They are on.") for _ in range(3)))
    assert await status_of(room, dispatch) is RunDispatchStatus.ACKED
    await room.turn()
    await give(room, dispatch, text="They are on.")
    with pytest.raises(errors.ResultConflict):
        await give(room, dispatch, text="They are off.")
    with pytest.raises(errors.ResultConflict):
        await give(room, dispatch, error="no")
    await room.turn()
    assert await room.texts("Ada") == [("Bo", "They are on.")]
    assert len(remote.asked) == 1


async def test_of_two_results_at_once_the_first_counts_and_the_other_is_refused(
    room: RunnerRoom, remote: FakeRemote
) -> None:
    dispatch = await begun(room, remote, TAKEN)
    both = (give(room, dispatch, text="on"), give(room, dispatch, text="off"))
    first, second = await asyncio.gather(*both, return_exceptions=True)
    assert first is None
    assert isinstance(second, errors.ResultConflict)
    await room.turn()
    assert await room.texts("Ada") == [("Bo", "on")]


async def test_a_result_may_overtake_the_answer_to_the_run_itself(
    room: RunnerRoom, remote: FakeRemote
) -> None:
    dispatch = await begun(room, remote, SILENCE)
    await give(room, dispatch, text="fast")
    await room.turn()
    assert await room.texts("Ada") == [("Bo", "fast")]
    assert remote.cancels == []


async def test_a_failure_that_the_other_server_tells_is_told_to_whoever_wrote(
    room: RunnerRoom, remote: FakeRemote
) -> None:
    dispatch = await begun(room, remote, TAKEN)
    await give(room, dispatch, error="no such pier")
    await give(room, dispatch, error="no such pier")
    with pytest.raises(errors.StaleResult):
        await give(room, dispatch, text="there is one")
    await room.turn()
    [(_, text)] = await room.texts("Ada")
    assert text.endswith("the other server reported: no such pier")
    assert await status_of(room, dispatch) is RunDispatchStatus.DEAD_LETTER


async def test_a_long_answer_is_known_again(room: RunnerRoom, remote: FakeRemote) -> None:
    dispatch = await begun(room, remote, TAKEN)
    for _ in range(2):
        await give(room, dispatch, text="lights \u2603 \x00" * 50_000)
    assert await status_of(room, dispatch) is RunDispatchStatus.ACKED


@pytest.mark.parametrize("is_over", [False, True])
async def test_what_is_not_signed_with_the_secret_changes_nothing(
    room: RunnerRoom, remote: FakeRemote, is_over: bool
) -> None:
    dispatch = await begun(room, remote, TAKEN)
    if is_over:
        await give(room, dispatch, text="right")
    now, body = room.clock.now(), result(dispatch, text="right")
    good = sign(SECRET, now, body)
    run = remote.runs[0]
    unreadable = {"X-Postroom-Timestamp": "soon", "X-Postroom-Signature": signature(SECRET, "soon", body)}
    wrong = [
        *(({}, body), (sign(OTHER, now, body), body), (good, result(dispatch, text="forged"))),
        (good | {"X-Postroom-Timestamp": str(now // 1000 + 1)}, body),
        (good | {"X-Postroom-Timestamp": "soon"}, body),
        (good | {"X-Postroom-Signature": good["X-Postroom-Signature"][3:]}, body),
        *((good | {"X-Postroom-Signature": "v1=\u2603"}, body), (unreadable, body)),
        *((sign(SECRET, now - 301_000, body), body), (sign(SECRET, now + 301_000, body), body)),
    ]
    for headers, content in wrong:
        with pytest.raises(errors.WrongSignature):
            await room.results.take(dispatch, headers, content)
    with pytest.raises(errors.WrongSignature):
        await room.results.take("no-such-dispatch", good, body)
    posed = result(dispatch, text="x").replace(b'"kind": "result"', b'"kind": "run"')
    for content in (run.body, b"{", b"[]", result("another", text="x"), result(dispatch), posed):
        with pytest.raises(errors.InvalidArgument):
            await give(room, dispatch, content)
    with pytest.raises(errors.InvalidArgument):
        await give(room, dispatch, text="x", error="y")
    ended = RunDispatchStatus.ACKED if is_over else RunDispatchStatus.CLAIMED
    assert await status_of(room, dispatch) is ended


async def test_a_result_for_another_agent_is_not_taken(room: RunnerRoom, remote: FakeRemote) -> None:
    dispatch = await begun(room, remote, TAKEN)
    await give(room, dispatch, text="right")
    room.runners["Bo"] = bo(remote, secret_env="CY_SECRET")
    room.environment["CY_SECRET"] = OTHER  # type: ignore[index]
    with pytest.raises(errors.WrongSignature):
        await give(room, dispatch, text="right")


async def test_who_proves_nothing_is_not_told_where_a_secret_should_have_been(
    room: RunnerRoom, remote: FakeRemote
) -> None:
    dispatch = await begun(room, remote, TAKEN)
    await give(room, dispatch, text="right")
    room.runners["Bo"] = bo(remote, secret_env="NO_SUCH")
    with pytest.raises(errors.ResultTooEarly) as caught:
        await give(room, dispatch, text="right")
    assert "NO_SUCH" not in json.dumps(caught.value.as_dict())


@each_row(
    "answer, why",
    [
        (reply(307, Location="/elsewhere"), "answered with status 307"),
        (reply(302, Location="https://elsewhere.example/run"), "answered with status 302"),
        (reply(401, {"secret": SECRET}), "answered with status 401"),
        *((reply(404), "answered with status 404"), (reply(204), "answered with status 204")),
        (reply(200, b"<html>"), "the other server's answer is invalid"),
        (reply(200, {"kind": "result", "dispatch": "another", "text": "x"}), "belongs to another dispatch"),
        *((reply(200, b"x" * (LARGEST_BODY + 1)), "exceeds"), (reply(500), "answered with status 500")),
        *((reply(429), "answered with status 429"), (CUT, "did not answer")),
        (b"hello\r\n\r\n", "did not answer"),
    ],
)
async def test_whoever_wrote_learns_why_the_other_server_failed_and_never_the_secret(
    room: RunnerRoom, remote: FakeRemote, answer: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await begun(room, remote, answer)
    await room.turn()
    message = (await room.inbox("Ada"))[-1]
    assert message["importance"] == "high"
    assert why in message["body_md"]
    assert [one.path for one in remote.asked] == ["/run"]
    kept = [one.runner for one in await room.store.read(lambda tx: tx.runners(limit=9, after=0))]
    seen = caplog.text + str(message) + str(await room.dead()) + str(await room.runs_of()) + str(kept)
    assert SECRET not in seen
    assert remote.runs[0].headers["x-postroom-signature"] not in seen
    remote.asked.clear()


async def test_nobody_there_is_told_too(room: RunnerRoom) -> None:
    gone = FakeRemote()
    async with gone.serving():
        pass
    await room.employ(Bo=bo(gone))
    await room.send("Ada", "Bo")
    await room.turn()
    [(_, text)] = await room.texts("Ada")
    assert "the other server did not answer: ConnectError" in text


@pytest.mark.parametrize("fault", [reply(503, Retry_After="7"), CUT])
async def test_a_reply_that_is_lost_or_says_later_is_asked_for_again_under_the_same_key(
    store: SqliteStore, clock: ManualClock, remote: FakeRemote, fault: Any
) -> None:
    room = RunnerRoom(store=store, runs=store.runs, clock=clock, most_attempts=3)
    dispatch = await begun(room, remote, fault, says("done"))
    await room.turn()
    with pytest.raises(errors.ResultTooEarly):
        await give(room, dispatch, text="done")
    assert len(remote.runs) == 1
    clock.advance(timedelta(minutes=5))
    await room.mailbox.recover()
    await room.turn()
    assert await room.texts("Ada") == [("Bo", "done")]
    first, second = remote.runs
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"] == dispatch
    assert first.body == second.body
    await room.end()


async def test_a_result_that_does_not_come_in_time_is_waited_for_no_longer(
    room: RunnerRoom, remote: FakeRemote
) -> None:
    for answer in (TAKEN, SILENCE):
        dispatch = await begun(room, remote, answer, timeout=timedelta(seconds=20))
        await until(lambda: room.results.executing == 1 and room.clock.sleeping > 0)
        room.clock.advance(timedelta(seconds=21))
        await room.turn()
        assert "no result arrived within 20 s" in (await room.texts("Ada"))[-1][1]
        [cancel] = remote.cancels
        assert (cancel.path, cancel.told["dispatch"]) == ("/run/cancel", dispatch)
        with pytest.raises(errors.StaleResult):
            await give(room, dispatch, text="late")
        assert await status_of(room, dispatch) is RunDispatchStatus.DEAD_LETTER
        remote.asked.clear()


async def test_a_cancel_is_told_to_the_other_server_and_a_later_result_is_refused(
    room: RunnerRoom, remote: FakeRemote
) -> None:
    dispatch = await begun(room, remote, TAKEN, url=f"{remote.url}?a=b")
    assert await room.mailbox.cancel(dispatch)
    await room.turn()
    [cancel] = remote.cancels
    assert cancel.path == "/run/cancel?a=b"
    assert cancel.told == {"kind": "cancel", "dispatch": dispatch, "run": remote.runs[0].told["run"]}
    expected = sign(SECRET, room.clock.now(), cancel.body)
    assert {name: cancel.headers[name.lower()] for name in expected} == expected
    [run] = await room.runs_of()
    assert run.status is RunStatus.DONE
    with pytest.raises(errors.StaleResult):
        await give(room, dispatch, text="late")


async def test_a_result_that_crosses_a_cancel_is_not_said_to_be_taken(
    room: RunnerRoom, remote: FakeRemote
) -> None:
    dispatch = await begun(room, remote, TAKEN)
    assert room.results.cancel(dispatch)
    with pytest.raises((errors.ResultTooEarly, errors.StaleResult)):
        await give(room, dispatch, text="crossed")
    await room.turn()
    with pytest.raises(errors.StaleResult):
        await give(room, dispatch, text="crossed")
    assert await status_of(room, dispatch) is RunDispatchStatus.ACKED


async def test_a_server_that_begins_anew_asks_for_the_same_run_and_takes_its_result(
    room: RunnerRoom, remote: FakeRemote
) -> None:
    dispatch = await begun(room, remote, TAKEN, TAKEN)
    await room.end()
    assert remote.cancels == []
    room.begin()
    with pytest.raises(errors.ResultTooEarly):
        await give(room, dispatch, text="early")
    await room.mailbox.recover()
    await remote.come(2)
    assert [one.told["dispatch"] for one in remote.runs] == [dispatch, dispatch]
    await give(room, dispatch, text="after all")
    await room.turn()
    assert await room.texts("Ada") == [("Bo", "after all")]


async def test_a_run_that_nobody_knows_of_after_a_restart_ends_with_a_reason(
    room: RunnerRoom, remote: FakeRemote
) -> None:
    await begun(room, remote, TAKEN, reply(404))
    await room.end()
    room.begin()
    await room.mailbox.recover()
    await room.turn()
    assert "answered with status 404" in (await room.texts("Ada"))[0][1]


async def test_what_is_executed_here_already_is_not_begun_twice(room: RunnerRoom, remote: FakeRemote) -> None:
    dispatch = await begun(room, remote, TAKEN)
    thread = remote.runs[0].told["thread"]
    assert not room.results.send_messages(dispatch, [])
    assert not room.results.cancel("another")
    await room.send("Ada", "Bo", body="And now?")
    assert len(remote.runs) == 1
    remote.answers = [says("second")]
    await give(room, dispatch, text="first")
    await room.turn()
    assert [text for _, text in await room.texts("Ada")] == ["first", "second"]
    assert {one.told["thread"] for one in remote.runs} == {thread}


async def test_a_server_far_away_that_was_told_no_way_back_must_answer_at_once(
    room: RunnerRoom, remote: FakeRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.address = "http://127.0.0.1:8765"
    monkeypatch.setattr(HttpRunner, "callback", lambda *_: None)
    await begun(room, remote, TAKEN)
    await room.turn()
    assert remote.runs[0].told["callback"] is None
    assert "needs a URL to which it can send its result" in (await room.texts("Ada"))[0][1]


@each_row(
    "mode, content, why",
    [
        (0o644, SECRET, "can be used by other users"),
        (0o600, "short", "must have at least 16 characters"),
        (0o600, "\n", "contains no secret"),
        (None, "", "cannot be read"),
    ],
)
async def test_a_secret_in_a_file_is_of_its_owner_alone(
    room: RunnerRoom, remote: FakeRemote, tmp_path: Path, mode: int | None, content: str, why: str
) -> None:
    file = tmp_path / "secret"
    file.unlink(missing_ok=True)
    if mode is not None:
        file.write_text(content)
        file.chmod(mode)
    await room.employ(Bo=bo(remote, secret_env=None, secret_file=str(file)))
    await room.send("Ada", "Bo")
    await room.turn()
    assert why in (await room.texts("Ada"))[-1][1]
    assert remote.asked == []
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    remote.answers = [says("done")]
    await room.send("Ada", "Bo")
    await room.turn()
    assert (await room.texts("Ada"))[-1][1] == "done"
    remote.asked.clear()


async def test_every_refusal_says_whether_it_is_to_be_sent_again(
    room: RunnerRoom, remote: FakeRemote
) -> None:
    assert errors.ResultTooEarly.retryable
    refusals: tuple[type[errors.PostroomError], ...] = (
        errors.ResultConflict,
        errors.StaleResult,
        errors.WrongSignature,
    )
    assert not any(one.retryable for one in refusals)

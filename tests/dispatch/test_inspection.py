"""Everything that waits has a reason; dead letters can be inspected, replayed, and discarded."""

from datetime import timedelta

import pytest

from dispatch_room import (
    Blocking,
    Counting,
    Deaf,
    Noop,
    ask,
    done,
    enqueue_prepared_dispatch,
    said,
    unauthorized,
)
from postroom.contracts.errors import IllegalTransition, Unauthorized, UnknownDispatch
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.runs import (
    RunStatus,
    RunWaitingState,
    RunWaitingTicket,
    TerminationReason,
    WaitingReason,
)
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.inspection import WhyNot


async def test_why_not_names_what_holds_a_dispatch_back_by_its_run_and_in_another_process_too(room):
    executor = Blocking()
    mailbox = room.mailbox(executor, consumer_id="here", config=MailboxConfig(max_concurrent_runs=1))
    running, behind, elsewhere = [await mailbox.submit_background(ask(thread)) for thread in "ttu"]
    later = await mailbox.submit_background(ask("v", delay_ms=5_000))
    await executor.started.get()
    assert (await mailbox.why_not(elsewhere.dispatch_id)).why is WhyNot.NO_FREE_SLOT
    for asked in (mailbox, room.mailbox(Counting(), consumer_id="elsewhere")):
        for name in ("dispatch_id", "run_id"):
            why = await asked.why_not(getattr(running, name))
            assert (why.why, why.text) == (WhyNot.RUNNING, "here executes it")
            why = await asked.why_not(getattr(behind, name))
            assert (why.why, why.by_dispatch_id) == (WhyNot.THREAD_BUSY, running.dispatch_id)
            why = await asked.why_not(getattr(later, name))
            assert (why.why, why.until) == (WhyNot.NOT_DUE, room.clock.now() + 5_000)
        with pytest.raises(UnknownDispatch):
            await asked.why_not("nothing")
    executor.release.set()
    await room.acked(elsewhere)
    assert (await mailbox.why_not(running.dispatch_id)).why is WhyNot.ENDED


async def test_why_not_of_what_waits_for_nobody_but_a_mailbox(room):
    mailbox = room.mailbox(Noop())
    first = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "first")
    second = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "second")
    assert (await mailbox.why_not(first.dispatch_id)).why is WhyNot.ABOUT_TO_START
    why = await mailbox.why_not(second.dispatch_id)
    assert (why.why, why.by_dispatch_id) == (WhyNot.BEHIND_OTHERS, first.dispatch_id)
    await room.stores.dispatches.claim("t", "somebody", lease_ms=1_000)
    room.passes(milliseconds=1_001)
    assert (await mailbox.why_not(first.dispatch_id)).why is WhyNot.LEASE_ENDED
    await mailbox.drain(timedelta(0))
    third = await enqueue_prepared_dispatch(mailbox, room.stores, "u", "third")
    assert (await mailbox.why_not(third.dispatch_id)).why is WhyNot.DRAINING


class Pausing(Deaf):
    """Waits as a run does whose budget is used up."""

    async def execute(self, activation, sink):
        ticket = RunWaitingTicket(ticket_id="q", tool_call_id="budget", reason="its budget is used up")
        waiting = RunWaitingState(reason=WaitingReason.MANUAL_PAUSE, tickets=(ticket,))
        suspended = TerminationReason.suspended()
        return AgentRunResult(run_id=activation.run_id, termination=suspended, waiting=waiting)


async def test_why_not_of_what_is_paused_superseded_or_given_up(room):
    mailbox = room.mailbox(Pausing())
    paused = await mailbox.submit_background(ask())
    await room.acked(paused)
    why = await mailbox.why_not(paused.dispatch_id)
    assert (why.why, why.text) == (WhyNot.WAITING, "the run waits: its budget is used up")
    replaced = await mailbox.submit_background(ask("u", delay_ms=1_000))
    await mailbox.interrupt("u")
    why = await mailbox.why_not(replaced.dispatch_id)
    assert (why.why, why.text) == (WhyNot.SUPERSEDED, "queued dispatch superseded by interrupt")
    assert await mailbox.cancel(paused.run_id)
    assert (await mailbox.why_not(paused.dispatch_id)).why is WhyNot.ENDED


class Mended(Deaf):
    """Is refused at first; works once the credentials are corrected."""

    mended = False

    async def execute(self, activation, sink):
        if not self.mended:
            raise Unauthorized("no credentials")
        return done(activation)


async def test_a_dead_letter_is_tried_again_as_a_new_run_on_the_same_messages(room):
    executor = Mended()
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(ask("t", "important"))
    await room.given_up(result)
    await mailbox.settled()
    assert [row.dispatch_id for row in await mailbox.dead_letters()] == [result.dispatch_id]
    executor.mended = True
    again = await mailbox.replay_dead_letter(result.dispatch_id)
    await room.acked(again)
    assert said(executor)[1] == ["important"]
    assert await mailbox.dead_letters() == ()
    assert (await room.run(result)).termination.type == "error"
    run = await room.run(again)
    assert (run.status, run.parent_run_id) == (RunStatus.DONE, result.run_id)
    assert await room.texts() == ["important", "ok"]
    for replay, error in ((result, UnknownDispatch), (again, IllegalTransition)):
        with pytest.raises(error):
            await mailbox.replay_dead_letter(replay.dispatch_id)


async def test_dead_letters_are_kept_longer_than_other_ended_rows_and_can_be_thrown_away(room):
    mailbox = room.mailbox(unauthorized())
    dead, thrown = [await mailbox.submit_background(ask(thread)) for thread in "tu"]
    for one in (dead, thrown):
        await room.given_up(one)
    fine = await room.mailbox(Counting()).submit_background(ask("v"))
    await room.acked(fine)
    with pytest.raises(IllegalTransition):
        await mailbox.discard_dead_letter(fine.dispatch_id)
    assert (await mailbox.discard_dead_letter(thrown.dispatch_id)).run_id == thrown.run_id
    await mailbox.settled()

    async def left():
        return [thread for thread in "tuv" if await room.rows(thread)]

    assert await left() == ["t", "v"]
    for hours, kept in ((24, ["t"]), (30 * 24, [])):
        room.passes(hours=hours, milliseconds=1)
        await mailbox.run_gc()
        assert await left() == kept

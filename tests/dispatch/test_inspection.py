"""Everything that waits says why; what was given up can be looked at, tried again, and thrown away."""

from datetime import timedelta

import pytest

from dispatch_room import (
    Blocking,
    Counting,
    Deaf,
    Noop,
    RunActivation,
    dispatch_in,
    done,
    enqueue_prepared_dispatch,
    unauthorized,
)
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import IllegalTransition, Unauthorized, UnknownDispatch
from postroom.contracts.runs import RunStatus
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.inspection import WhyNot


async def test_why_not_names_what_holds_a_dispatch_back(room):
    executor = Blocking()
    mailbox = room.mailbox(executor, config=MailboxConfig(max_concurrent_runs=1))
    running = await mailbox.submit_background(RunActivation.new("t", ["running"]))
    await executor.started.get()
    behind = await mailbox.submit_background(RunActivation.new("t", ["behind"]))
    elsewhere = await mailbox.submit_background(RunActivation.new("u", ["no slot"]))
    later = await mailbox.submit_background(RunActivation.new("v", ["later"]).delivered(delay_ms=5_000))

    async def why(result):
        return await mailbox.why_not(result.dispatch_id)

    assert (await why(running)).why is WhyNot.RUNNING
    said = await why(behind)
    assert (said.why, said.by_dispatch_id) == (WhyNot.THREAD_BUSY, running.dispatch_id)
    assert (await why(elsewhere)).why is WhyNot.NO_FREE_SLOT
    said = await why(later)
    assert (said.why, said.until) == (WhyNot.NOT_DUE, room.clock.now() + 5_000)
    executor.release.set()
    await dispatch_in(room.stores, elsewhere.dispatch_id, RunDispatchStatus.ACKED)
    assert (await why(running)).why is WhyNot.ENDED
    with pytest.raises(UnknownDispatch):
        await mailbox.why_not("nothing")


async def test_why_not_of_what_waits_for_nobody_but_a_mailbox(room):
    mailbox = room.mailbox(Noop())
    first = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "first")
    second = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "second")
    assert (await mailbox.why_not(first.dispatch_id)).why is WhyNot.ABOUT_TO_START
    said = await mailbox.why_not(second.dispatch_id)
    assert (said.why, said.by_dispatch_id) == (WhyNot.BEHIND_OTHERS, first.dispatch_id)
    await room.stores.dispatches.claim("t", "somebody", lease_ms=1_000)
    room.clock.advance(timedelta(milliseconds=1_001))
    assert (await mailbox.why_not(first.dispatch_id)).why is WhyNot.LEASE_ENDED
    await mailbox.drain(timedelta(0))
    third = await enqueue_prepared_dispatch(mailbox, room.stores, "u", "third")
    assert (await mailbox.why_not(third.dispatch_id)).why is WhyNot.DRAINING


class Mended(Deaf):
    """Is refused at first; works once the credentials are mended."""

    def __init__(self) -> None:
        super().__init__()
        self.mended = False

    async def execute(self, activation, sink):
        if not self.mended:
            raise Unauthorized("no credentials")
        return done(activation)


async def test_a_dead_letter_is_tried_again_as_a_new_run_on_the_same_messages(room):
    executor = Mended()
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(RunActivation.new("t", ["important"]))
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.DEAD_LETTER)
    await mailbox.settled()
    assert [row.dispatch_id for row in await mailbox.dead_letters()] == [result.dispatch_id]
    executor.mended = True
    again = await mailbox.replay_dead_letter(result.dispatch_id)
    await dispatch_in(room.stores, again.dispatch_id, RunDispatchStatus.ACKED)
    assert again.run_id != result.run_id
    assert [m.text() for m in executor.activations[1].messages] == ["important"]
    assert await mailbox.dead_letters() == ()
    assert (await room.stores.threads.load_run(result.run_id)).termination.type == "error"
    run = await room.stores.threads.load_run(again.run_id)
    assert (run.status, run.parent_run_id) == (RunStatus.DONE, result.run_id)
    texts = [m.text() for m in await room.stores.threads.load_messages("t")]
    assert texts == ["important", "ok"]
    with pytest.raises(UnknownDispatch):
        await mailbox.replay_dead_letter(result.dispatch_id)


async def test_a_dead_letter_can_be_thrown_away_and_nothing_else_can(room):
    mailbox = room.mailbox(unauthorized())
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.DEAD_LETTER)
    await mailbox.settled()
    thrown = await mailbox.discard_dead_letter(result.dispatch_id)
    assert thrown.run_id == result.run_id
    assert await room.stores.dispatches.load_dispatch(result.dispatch_id) is None
    other = await room.mailbox(Counting()).submit_background(RunActivation.new("u", ["go"]))
    await dispatch_in(room.stores, other.dispatch_id, RunDispatchStatus.ACKED)
    with pytest.raises(IllegalTransition):
        await mailbox.discard_dead_letter(other.dispatch_id)
    with pytest.raises(IllegalTransition):
        await mailbox.replay_dead_letter(other.dispatch_id)


async def test_dead_letters_are_kept_longer_than_other_ended_rows(room):
    mailbox = room.mailbox(unauthorized())
    dead = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await dispatch_in(room.stores, dead.dispatch_id, RunDispatchStatus.DEAD_LETTER)
    await mailbox.settled()
    fine = await room.mailbox(Counting()).submit_background(RunActivation.new("u", ["go"]))
    await dispatch_in(room.stores, fine.dispatch_id, RunDispatchStatus.ACKED)
    room.clock.advance(timedelta(hours=24, milliseconds=1))
    await mailbox.run_gc()
    assert await room.stores.dispatches.load_dispatch(fine.dispatch_id) is None
    assert await room.stores.dispatches.load_dispatch(dead.dispatch_id) is not None
    room.clock.advance(timedelta(days=30))
    await mailbox.run_gc()
    assert await room.stores.dispatches.load_dispatch(dead.dispatch_id) is None

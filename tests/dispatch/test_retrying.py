"""How long failed work is tried again: outages pass, defects do not, and a submission may say it for itself."""

from datetime import timedelta
from random import Random

import pytest

from dispatch_room import Deaf, Raising, dispatch_in, done
from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import CommandKilled, InvalidSubmission, ProviderFailed, Unauthorized
from postroom.contracts.runs import RunStatus
from postroom.dispatch.config import MailboxConfig


class Shortest(Random):
    def randint(self, a, b):
        return a


class Longest(Random):
    def randint(self, a, b):
        return b


class Away(Deaf):
    """A provider that is away until an instant."""

    def __init__(self, clock, until):
        super().__init__()
        self.clock, self.until = clock, until

    async def execute(self, activation, sink):
        if self.clock.now() < self.until:
            raise ConnectionRefusedError("nobody listens")
        return done(activation)


async def until_over(room, mailbox, dispatch_id):
    """Let time pass until the run has ended; return its row and how long that took."""
    began = room.clock.now()
    while True:
        await mailbox.settled()
        row = await room.stores.dispatches.load_dispatch(dispatch_id)
        if row.status is not RunDispatchStatus.QUEUED:
            return row, room.clock.now() - began
        room.clock.set(max(row.available_at, room.clock.now()))
        assert await mailbox.poll() == 1


@pytest.mark.parametrize("random", [Shortest(), Longest()])
@pytest.mark.parametrize("seconds", [8, 600])
async def test_by_default_a_provider_that_is_away_for_ten_minutes_gives_up_nothing(room, seconds, random):
    executor = Away(room.clock, room.clock.now() + seconds * 1_000)
    mailbox = room.mailbox(executor, random=random)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    row, took = await until_over(room, mailbox, result.dispatch_id)
    assert row.status is RunDispatchStatus.ACKED
    assert executor.run_count <= 13
    assert took < seconds * 1_000 + 300_000


async def test_an_outage_that_does_not_end_is_given_up_at_last(room):
    executor = Raising(ProviderFailed("500"))
    mailbox = room.mailbox(executor, random=Longest())
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    row, took = await until_over(room, mailbox, result.dispatch_id)
    assert (row.status, row.attempt_count, row.max_attempts) == (RunDispatchStatus.DEAD_LETTER, 13, 13)
    assert took < timedelta(minutes=20) // timedelta(milliseconds=1)
    assert (await room.stores.threads.load_run(result.run_id)).status is RunStatus.DONE


@pytest.mark.parametrize("error", [KeyError("page"), ValueError("no number"), CommandKilled("signal 9")])
async def test_a_defect_is_given_up_after_the_usual_attempts(room, error):
    executor = Raising(error)
    mailbox = room.mailbox(executor, random=Longest())
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    row, took = await until_over(room, mailbox, result.dispatch_id)
    assert (row.status, row.attempt_count, row.max_attempts) == (RunDispatchStatus.DEAD_LETTER, 5, 5)
    assert took == 250 + 500 + 1_000 + 2_000


async def test_what_turns_out_to_be_a_defect_behind_an_outage_is_given_up_then(room):
    executor = Raising(*[ConnectionError("away")] * 7, KeyError("page"))
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    row, _ = await until_over(room, mailbox, result.dispatch_id)
    assert (row.status, row.attempt_count, row.max_attempts) == (RunDispatchStatus.DEAD_LETTER, 8, 8)
    permanent = room.mailbox(Raising(*[ConnectionError("away")] * 7, Unauthorized("no key")))
    result = await permanent.submit_background(RunActivation.new("u", ["go"]))
    row, _ = await until_over(room, permanent, result.dispatch_id)
    assert (row.status, row.attempt_count) == (RunDispatchStatus.DEAD_LETTER, 7)


@pytest.mark.parametrize(
    "config", [MailboxConfig(default_max_attempts=3), MailboxConfig(outage=timedelta(0))]
)
async def test_who_sets_the_attempts_or_no_outage_has_so_many(room, config):
    mailbox = room.mailbox(Raising(ConnectionError("away")), config=config)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    row, _ = await until_over(room, mailbox, result.dispatch_id)
    assert row.status is RunDispatchStatus.DEAD_LETTER
    assert row.attempt_count == config.default_max_attempts


async def test_a_submission_has_a_retry_policy_of_its_own(room):
    executor = Raising(ConnectionError("away"))
    mailbox = room.mailbox(executor, random=Longest())
    policy = {"max_attempts": 6, "retry_delay_ms": 1_000, "max_retry_delay_ms": 5_000}
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]).delivered(**policy))
    row, took = await until_over(room, mailbox, result.dispatch_id)
    assert (row.status, row.attempt_count) == (RunDispatchStatus.DEAD_LETTER, 6)
    assert took == 1_000 + 2_000 + 4_000 + 5_000 + 5_000
    one = await mailbox.submit_background(RunActivation.new("u", ["go"]).delivered(max_attempts=1))
    assert (await dispatch_in(room.stores, one.dispatch_id, RunDispatchStatus.DEAD_LETTER)).attempt_count == 1


@pytest.mark.parametrize("field", ["retry_delay_ms", "max_retry_delay_ms"])
async def test_a_negative_delay_of_a_retry_is_refused_before_anything_is_written(room, field):
    mailbox = room.mailbox(Raising(ConnectionError("away")))
    with pytest.raises(InvalidSubmission, match="delay of a retry"):
        await mailbox.submit_background(RunActivation.new("t", ["a"]).delivered(**{field: -1}))
    assert await room.stores.threads.load_thread("t") is None

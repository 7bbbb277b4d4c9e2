"""What a mailbox is set to: defaults that callers rely on, and that what is set is what is done."""

import dataclasses
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from dispatch.conftest import Room
from dispatch_room import Blocking, Noop, dispatch_that, rate_limited
from dispatch_waiting import settled
from postroom.contracts.activation import RunActivation
from postroom.contracts.budgets import Budget, BudgetScope, BudgetWindow
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import ConfigError
from postroom.contracts.limits import Limit, LimitScope
from postroom.dispatch.completion import backoff_ms, retry_delay_ms
from postroom.dispatch.config import (
    MailboxConfig,
    MailboxLifecycleConfig,
    StartupRecoveryConfig,
)
from postroom.dispatch.recovery import claim_error_pause_ms
from postroom.dispatch.worker import DispatchAttempt
from table_rows import each_row

BACKOFF = {1: 250, 2: 500, 3: 1_000, 4: 2_000, 5: 4_000, 6: 8_000, 7: 16_000}


class Longest(Random):
    """Draws the longest delay each time."""

    def randint(self, a: int, b: int) -> int:
        return b


def test_mailbox_config_defaults() -> None:
    config = MailboxConfig()
    assert config.lease_ms == 30_000
    assert config.suspended_lease_ms == 600_000
    assert config.lease_renewal_interval == timedelta(seconds=10)
    assert config.sweep_interval == timedelta(seconds=30)
    assert config.gc_interval == timedelta(seconds=60)
    assert config.gc_ttl == timedelta(hours=24)
    assert config.default_max_attempts == 5
    assert config.default_retry_delay_ms == 250
    assert config.max_retry_delay_ms == 30_000


@each_row(
    "setting, value",
    [
        ("lease_ms", 0),
        ("lease_retry_ms", 0),
        ("poll_interval", timedelta(0)),
        ("default_max_attempts", 0),
        ("max_run_ms", 0),
        ("gc_ttl", timedelta(seconds=-1)),
        ("max_queued_per_thread", -1),
        ("drain_grace", timedelta(microseconds=-1)),
    ],
)
def test_a_setting_below_what_it_may_be_is_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=setting):
        MailboxConfig(**{setting: value})


def test_a_bound_may_be_nothing_or_not_set() -> None:
    config = MailboxConfig(max_concurrent_runs=0, drain_grace=timedelta(0), max_queued_per_thread=None)
    assert (config.max_concurrent_runs, config.max_queued_per_thread) == (0, None)


def test_dispatch_signal_blocked_nack_delay_backs_off_and_caps() -> None:
    assert claim_error_pause_ms(None) == 500
    assert claim_error_pause_ms(3) == 2_000
    assert claim_error_pause_ms(100) == 30_000
    delays = [claim_error_pause_ms(attempts) for attempts in range(1, 9)]
    assert delays == [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]


def test_mailbox_lifecycle_config_defaults() -> None:
    config = MailboxLifecycleConfig()
    assert config.startup_delay == timedelta(0)
    assert config.startup_recovery == StartupRecoveryConfig(
        max_attempts=1, retry_delay=timedelta(milliseconds=250)
    )
    assert config.maintenance_callback is None


async def test_mailbox_config_custom_values(room: Room) -> None:
    """The values are kept, and are those that a dispatch is claimed, renewed, retried and removed by."""
    given: dict[str, Any] = {
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
    assert {name: getattr(config, name) for name in given} == given
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lease_ms = 1  # type: ignore[misc]
    assert [backoff_ms(config, attempt) for attempt in (1, 2, 7)] == [500, 1_000, 32_000]

    executor, began = Blocking(), room.clock.now()
    mailbox = room.mailbox(executor, config=config)
    submitted = await mailbox.submit_background(RunActivation.new("thread-custom", ["hi"]))
    await executor.started.get()
    row = await room.stores.dispatches.load_dispatch(submitted.dispatch_id)
    assert row is not None
    assert (row.max_attempts, row.lease_until) == (3, began + 5_000)

    room.clock.advance(timedelta(seconds=2))
    await dispatch_that(room.stores, row.dispatch_id, lambda row: row.lease_until == began + 7_000)

    executor.release.set()
    await settled(mailbox)
    room.clock.advance(timedelta(hours=1))
    await mailbox.run_gc()
    kept = await room.stores.dispatches.load_dispatch(row.dispatch_id)
    assert kept is not None
    assert kept.status is RunDispatchStatus.ACKED
    room.clock.advance(timedelta(milliseconds=1))
    await mailbox.run_gc()
    assert await room.stores.dispatches.load_dispatch(row.dispatch_id) is None


async def test_inline_claim_guard_is_reasonable(room: Room) -> None:
    """What somebody waits for is claimed in the commit that stores it: no time has to keep others off."""
    executor, thief = Blocking(), room.mailbox(Noop(), consumer_id="thief")
    mailbox = room.mailbox(executor, consumer_id="inline")
    result, _ = await mailbox.submit(RunActivation.new("thread-inline", ["now"]))
    row = await room.stores.dispatches.load_dispatch(result.dispatch_id)
    assert row is not None
    assert (row.status, row.claimed_by) == (RunDispatchStatus.CLAIMED, "inline")
    assert (row.available_at, row.claimed_at) == (0, row.created_at)
    assert await thief.poll() == 0
    config = MailboxConfig()
    assert config.cancel_wait_ms < config.lease_ms, (
        "who waits for a run to give way waits for less than a lease"
    )
    executor.release.set()
    await settled(mailbox)


async def test_nack_backoff_progression(room: Room) -> None:
    """The table holds for the function, and for a dispatch that fails again and again."""
    config = MailboxConfig(default_max_attempts=9)
    assert {attempt: backoff_ms(MailboxConfig(), attempt) for attempt in BACKOFF} == BACKOFF

    mailbox = room.mailbox(rate_limited(), config=config, random=Longest())
    submitted = await mailbox.submit_background(RunActivation.new("thread-backoff", ["again"]))
    delays = {}
    for attempt in BACKOFF:
        await settled(mailbox)
        row = await room.stores.dispatches.load_dispatch(submitted.dispatch_id)
        assert row is not None
        assert (row.status, row.attempt_count) == (RunDispatchStatus.QUEUED, attempt)
        delays[attempt] = row.available_at - room.clock.now()
        room.clock.set(row.available_at - 1)
        assert await mailbox.try_dispatch_next("thread-backoff") is DispatchAttempt.NO_ELIGIBLE
        room.clock.set(row.available_at)
        assert await mailbox.try_dispatch_next("thread-backoff") is DispatchAttempt.CLAIMED
    assert delays == BACKOFF


def test_nack_backoff_caps_at_max() -> None:
    config = MailboxConfig(max_retry_delay_ms=5_000, default_retry_delay_ms=1_000)
    delays = [backoff_ms(config, attempt) for attempt in range(1, 6)]
    assert delays == [1_000, 2_000, 4_000, 5_000, 5_000]


def test_nack_backoff_zero_attempt_is_base_delay() -> None:
    config = MailboxConfig()
    assert [backoff_ms(config, attempt) for attempt in (-1, 0, 1)] == [250, 250, 250]


def test_nack_backoff_high_attempt_stays_capped() -> None:
    assert backoff_ms(MailboxConfig(), 100) == 16_000
    assert backoff_ms(MailboxConfig(max_retry_delay_ms=10_000), 100) == 10_000


def test_a_retry_is_spread_up_to_its_backoff_and_never_comes_before_it_was_asked_for() -> None:
    config, random = MailboxConfig(), Random(7)
    drawn = [retry_delay_ms(config, 3, random, retry_after_ms=None) for _ in range(200)]
    assert all(0 <= delay <= 1_000 for delay in drawn)
    assert len(set(drawn)) > 100
    asked = [retry_delay_ms(config, 1, random, retry_after_ms=60_000) for _ in range(20)]
    assert set(asked) == {60_000}


@pytest.mark.parametrize(
    "made",
    [
        lambda: Budget(per="nobody", runs=1),
        lambda: Budget(per=BudgetScope.ALL, window="week", runs=1),
        lambda: Budget(per=BudgetScope.ALL, runs="5"),
        lambda: Budget(per=BudgetScope.ALL, runs=1, zone=None),
        lambda: Limit(per="foo", at_once=1),
        lambda: Limit(per=LimitScope.ALL, at_once="3"),
        lambda: Limit(per=LimitScope.ALL, starts=1, period=5),
        lambda: MailboxConfig(limits=Limit(per=LimitScope.ALL, at_once=1)),
        lambda: MailboxConfig(budgets=("x",)),
    ],
)
def test_what_is_no_budget_and_no_limit_is_refused(made):
    with pytest.raises(ConfigError):
        made()


def test_kinds_may_be_given_by_their_names():
    assert Budget(per="all", window="day", runs=1) == Budget(
        per=BudgetScope.ALL, window=BudgetWindow.DAY, runs=1
    )
    assert Limit(per="key", at_once=1) == Limit(per=LimitScope.KEY, at_once=1)


@pytest.mark.parametrize(
    ("setting", "given", "allowed"),
    [
        ("max_run_ms", "x", "a whole number or None, not str"),
        ("drain_grace", 1, "a timedelta, not int"),
        ("lease_ms", True, "a whole number, not bool"),
        ("lease_ms", None, "a whole number, not NoneType"),
        ("poll_interval", 0.1, "a timedelta, not float"),
        ("outage", 5, "a timedelta or None, not int"),
        ("pending_zone", "no", "True or False, not str"),
        ("max_concurrent_runs", 2.5, "a whole number, not float"),
    ],
)
def test_a_setting_of_another_type_is_refused_by_name(setting, given, allowed):
    with pytest.raises(ConfigError, match=f"^{setting} must be {allowed}") as caught:
        MailboxConfig(**{setting: given})
    assert caught.value.value == repr(given)

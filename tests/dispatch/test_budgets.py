"""A budget that is used up: one run asks for all, the others stay queued until a yes, or until its window ends."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from dispatch.conftest import both_engines
from dispatch_room import Blocking, Counting, Deaf, RunActivation, ask, done, eventually, said
from dispatch_runtime import runtime_of
from postroom.contracts import errors
from postroom.contracts.inference import InferenceResult
from postroom.contracts.limits import Budget, BudgetScope, BudgetWindow, Spending, find_window
from postroom.contracts.records import replace
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunStatus, Usage, WaitingReason
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.budgets import Budgets
from postroom.dispatch.completion import ClaimAsk, claimed_next
from postroom.dispatch.config import MailboxConfig
from postroom.runtime import ScriptedModel
from postroom.stores.postgres.store import PostgresStore
from store_kinds import SCHEMA
from table_rows import each_row

HOUR, DAY, MONTH = BudgetWindow.HOUR, BudgetWindow.DAY, BudgetWindow.MONTH
DAILY = Budget(per=BudgetScope.TENANT, window=DAY, runs=2)
TOTAL = Budget(per=BudgetScope.TENANT, runs=2)
YES = ToolCallResume(decision_id="yes", result={"approved": True}, by="Ann")
NO = ToolCallResume(decision_id="no", result={"approved": False}, by="Ann")
NO_WORK = MailboxConfig(max_concurrent_runs=0)


def budgets(*budgets, **more):
    return MailboxConfig(budgets=budgets, **more)


def of_all(window=None, **limits):
    return Budget(per=BudgetScope.ALL, window=window, **limits)


ONE_A_MONTH = of_all(MONTH, zone="Europe/Berlin", runs=1)  # reads the zone, which no event loop waits for


async def submitted(mailbox, count, *, prefix="t", agent=None, **delivery):
    """Submit this many runs on separate threads, and execute those that the budget allows."""
    requests = [ask(f"{prefix}{n}", agent_id=agent, **(delivery or {"tenant": "acme"})) for n in range(count)]
    found = [await mailbox.submit_background(one) for one in requests]
    await mailbox.settled()
    return found


async def asking(room):
    """Return the runs with an open question, each once for each."""
    runs = await room.stores.threads.list_runs(RunQuery(statuses=(RunStatus.WAITING,)))
    return [run for run in runs for _ in run.open_tickets]


async def all_done(room, submissions):
    return {(await room.run(one)).status for one in submissions} == {RunStatus.DONE}


def answer(run, decision=YES):
    """Return an answer as pages and chats give it."""
    [ticket] = run.open_tickets
    decisions = [(ticket.tool_call_id, decision)]
    return RunActivation.new(run.thread_id, [], continue_run_id=run.run_id, decisions=decisions)


async def answered(room, mailbox, decision=YES):
    """Answer the only question; return the run that asked it."""
    [asker] = await asking(room)
    await mailbox.submit_background(answer(asker, decision))
    await mailbox.settled()
    return asker


async def polled(mailbox):
    """Start all due runs."""
    idle = 0
    while idle < 2:
        idle = 0 if await mailbox.poll() else idle + 1
        await mailbox.settled()


def instant(text):
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000


def at(room, text):
    """Move the clock to an instant in UTC that is still to come."""
    room.passes(milliseconds=instant(text) - room.clock.now())


async def test_one_run_asks_for_all_and_a_yes_has_all_go_on(room):
    executor = Counting()
    mailbox = room.mailbox(executor, config=budgets(replace(DAILY, runs=30)))
    found = await submitted(mailbox, 80)
    assert executor.run_count == 30
    [asker] = await asking(room)
    assert (asker.run_id, asker.waiting.reason) == (found[30].run_id, WaitingReason.MANUAL_PAUSE)
    asked = asker.open_tickets[0].arguments
    assert (asked["allowed"], asked["spent"]) == (30, 30)
    held = await mailbox.why_not(found[70].dispatch_id)
    assert (held.why, held.until) == ("over_budget", asked["until"])
    assert held.text.startswith("The budget of acme for this day is used up: 30 of 30 runs.")
    assert f"run {asker.run_id} asks" in held.text
    for begun in (60, 80):
        await answered(room, mailbox)
        await polled(mailbox)
        assert executor.run_count == begun
    assert await all_done(room, found)
    assert not await asking(room)


def claims_apart(mailbox):
    """Count the changes that only claimed a run."""
    counted = "postroom_mailbox_operation_duration_seconds_count"
    return mailbox.metrics.value(counted, operation="claim", result="ok")


class Spending5(Blocking):
    """Uses 5 tokens in each run; the first run waits until it is released."""

    async def execute(self, activation, sink):
        return replace(await super().execute(activation, sink), usage=Usage(input_tokens=5))


@both_engines
@pytest.mark.parametrize(
    "budget", [of_all(DAY, runs=4), replace(DAILY, runs=4), of_all(tokens=20), of_all(tokens=16)]
)
async def test_a_submission_and_the_end_of_a_run_claim_as_many_as_a_budget_allows(room, budget):
    executor = Spending5()
    mailbox = room.mailbox(executor, config=budgets(budget))
    found = [await mailbox.submit_background(ask("t", f"{n}").delivered(tenant="acme")) for n in range(7)]
    executor.release.set()
    await mailbox.settled()
    assert executor.run_count == 4
    [asker] = await asking(room)
    assert asker.run_id == found[4].run_id
    assert claims_apart(mailbox) == 0
    await answered(room, mailbox)
    await polled(mailbox)
    assert executor.run_count == 7
    assert await all_done(room, found)


@both_engines
async def test_two_servers_start_no_more_than_a_budget_allows_however_runs_are_claimed(
    room, run_place, clock
):
    """Submissions, ends and looks of both servers claim at the same time; each server has its own sessions."""
    stores, opened = room.stores, None
    if run_place.backend == "postgres":
        opened = await asyncio.to_thread(PostgresStore.open, run_place.dsn, schema=SCHEMA, clock=clock)
        stores = opened.runs
    executor, config = Counting(), budgets(of_all(DAY, runs=17), max_concurrent_runs=25)
    servers = [
        room.mailbox(executor, stores=one, consumer_id=f"server-{number}", config=config)
        for number, one in enumerate((room.stores, stores))
    ]
    try:
        async with asyncio.TaskGroup() as callers:
            for number in range(60):
                callers.create_task(
                    servers[number % 2].submit_background(ask(f"t{number % 40}", f"{number}"))
                )
        for _ in range(3):
            for server in servers:
                await polled(server)
        assert executor.run_count == 17
        assert len(await asking(room)) == 1
    finally:
        for server in servers:
            await server.aclose(timedelta(0))
        if opened is not None:
            await asyncio.to_thread(opened.close)


@pytest.mark.parametrize(("budget", "tokens"), [(of_all(runs=9), 0), (of_all(cost_micros=9), 10)])
async def test_costs_are_counted_only_if_a_budget_limits_costs(room, budget, tokens):
    executor = Spending5()
    executor.release.set()
    mailbox = room.mailbox(executor, config=budgets(budget))
    await submitted(mailbox, 2)
    [spent] = (await room.stores.threads.spending(["all:*"])).values()
    assert (spent.runs, spent.tokens) == (2, tokens)


@both_engines
async def test_a_submission_to_a_free_thread_waits_while_another_run_uses_the_rest_of_a_budget(room):
    class AllBlocking(Blocking):
        async def execute(self, activation, sink):
            await self.release.wait()
            return done(activation)

    executor = AllBlocking()
    mailbox = room.mailbox(executor, config=budgets(of_all(tokens=20)))
    found = [await mailbox.submit_background(ask(f"t{n}")) for n in range(6)]

    async def begun():
        return executor.run_count >= 4

    await eventually(begun)
    assert executor.run_count == 4  # so many while no cost is known
    assert {(await mailbox.why_not(one.run_id)).why for one in found[4:]} == {"over_budget"}
    executor.release.set()
    await mailbox.settled()
    await polled(mailbox)
    assert await all_done(room, found)


async def test_what_is_held_is_not_tried_again_and_again(room):
    mailbox = room.mailbox(Counting(), config=budgets(DAILY))
    await submitted(mailbox, 6)
    await submitted(mailbox, 1, prefix="other", tenant="other")
    assert await room.stores.store.read(lambda tx: tx.runs.dispatches.due_threads(10)) == ()
    assert await room.stores.dispatches.next_due_at() is None


async def test_a_new_window_begins_with_nothing_and_withdraws_the_question(room):
    at(room, "2026-11-23 22:00")
    executor = Counting()
    mailbox = room.mailbox(executor, config=budgets(DAILY))
    found = await submitted(mailbox, 4)
    [asker] = await asking(room)
    for instant_of, begun in (("2026-11-23 23:59:59", 2), ("2026-11-24 00:00", 4)):
        at(room, instant_of)
        await polled(mailbox)
        assert executor.run_count == begun
    assert await all_done(room, found)
    assert not await asking(room)
    assert [one.decision.by for one in (await room.run(asker)).answered] == ["postroom"]
    scopes = ["tenant:acme/day/2026-11-23", "tenant:acme/day/2026-11-24"]
    spent = await room.stores.threads.spending(scopes)
    assert [spent[scope].runs for scope in scopes] == [1, 2]


async def test_a_mailbox_that_rests_goes_on_by_itself_when_the_window_ends(room):
    at(room, "2026-11-23 23:59:59")
    mailbox = room.mailbox(Counting(), config=budgets(DAILY, poll_interval=timedelta(days=2)))
    await mailbox.start_lifecycle_ready()
    found = await submitted(mailbox, 4)
    await eventually(lambda: asking(room))
    room.passes(seconds=1)
    await room.acked(*found)
    await eventually(lambda: all_done(room, found))


async def test_old_windows_are_forgotten(room):
    mailbox = room.mailbox(Counting(), config=budgets(DAILY))
    await submitted(mailbox, 1)
    name, until = find_window(DAY, "UTC", room.clock.now())
    scope = f"tenant:acme/day/{name}"
    room.clock.set(until)
    for days, runs in ((0, 1), (1, 1), (2, 0)):
        room.passes(days=days)
        await mailbox.run_gc()
        assert (await room.stores.threads.spending([scope]))[scope].runs == runs


@pytest.mark.parametrize(
    ("per", "one", "other"),
    [
        (BudgetScope.KEY, {"limit_key": "model"}, {"limit_key": "other"}),
        (BudgetScope.AGENT, {"agent": "ada", "tenant": "acme"}, {"agent": "bo", "tenant": "acme"}),
        (BudgetScope.TENANT, {"tenant": "acme"}, {"limit_key": "acme"}),
    ],
)
async def test_each_tenant_key_and_agent_has_a_budget_of_its_own(room, per, one, other):
    executor = Counting()
    mailbox = room.mailbox(executor, config=budgets(Budget(per=per, runs=1)))
    await submitted(mailbox, 3, prefix="a", **one)
    await submitted(mailbox, 1, prefix="b", **other)
    assert [one.thread_id for one in executor.activations] == ["a0", "b0"]
    await answered(room, mailbox)  # who answers says nothing about tenant and key
    assert [one.thread_id for one in executor.activations[2:]] == ["a1"]
    await polled(mailbox)
    assert len(await asking(room)) == 1


class Spender(Deaf):
    """Uses something up in each run."""

    def __init__(self, **usage):
        super().__init__()
        self._usage = Usage(**usage)

    async def execute(self, activation, sink):
        return replace(done(activation), usage=self._usage)


async def test_two_budgets_of_the_same_runs_count_by_themselves(room):
    executor = Spender(input_tokens=6, output_tokens=4)
    each = (of_all(HOUR, runs=2), of_all(DAY, runs=5), of_all(DAY, tokens=70))
    at(room, "2026-11-23 10:00")
    mailbox, counts = room.mailbox(executor, config=budgets(*each, max_concurrent_runs=1)), []
    await submitted(mailbox, 12)
    await polled(mailbox)
    for _ in range(4):
        counts.append(executor.run_count)
        room.passes(hours=1)
        await polled(mailbox)
    assert counts == [2, 4, 5, 5]
    assert "5 of 5 runs" in (await answered(room, mailbox)).open_tickets[0].reason
    room.passes(hours=1)
    await polled(mailbox)
    assert executor.run_count == 7
    [asker] = [run for run in await asking(room) if "day" in run.open_tickets[0].reason]
    assert "70 of 70 tokens" in asker.open_tickets[0].reason


async def test_a_no_holds_until_the_window_ends(room):
    at(room, "2026-11-23 12:00")
    executor = Counting()
    mailbox = room.mailbox(executor, config=budgets(DAILY))
    found = await submitted(mailbox, 4)
    await answered(room, mailbox, NO)
    found += await submitted(mailbox, 1, prefix="later")
    await polled(mailbox)
    assert (executor.run_count, await asking(room)) == (2, [])
    for one in found[2:]:
        assert "a person refused more" in (await mailbox.why_not(one.run_id)).text
    room.passes(hours=12)
    await polled(mailbox)
    assert executor.run_count == 4
    await answered(room, mailbox)
    await polled(mailbox)
    assert await all_done(room, found)


async def test_without_a_window_a_no_leaves_the_question_open(room):
    executor = Counting()
    mailbox = room.mailbox(executor, config=budgets(TOTAL))
    found = await submitted(mailbox, 4)
    await answered(room, mailbox, NO)
    await polled(mailbox)
    assert executor.run_count == 2
    await answered(room, mailbox)
    await polled(mailbox)
    assert await all_done(room, found)


async def test_when_the_run_that_asks_is_cancelled_another_asks(room):
    mailbox = room.mailbox(Counting(), config=budgets(DAILY))
    found = await submitted(mailbox, 5)
    [first] = await asking(room)
    assert await mailbox.cancel(first.run_id)
    await polled(mailbox)
    [second] = await asking(room)
    [held] = {one.run_id for one in found[2:]} - {first.run_id, second.run_id}
    assert (await mailbox.why_not(held)).why == "over_budget"
    assert await mailbox.cancel(held)
    assert [run.run_id for run in await asking(room)] == [second.run_id]


async def test_a_process_that_dies_as_it_asks_leaves_one_question(room):
    config = budgets(of_all(DAY, runs=0))
    found = await submitted(room.mailbox(Counting(), consumer_id="writer", config=NO_WORK), 3)
    # It comes to claiming the run that is to ask, and not to writing what that waits for.
    asks = ClaimAsk(consumer="dead", lease_ms=30_000, instance_id="dead", budgets=Budgets(config.budgets))
    claimed = await room.stores.store.write(lambda tx: claimed_next(tx, "t0", asks))
    assert claimed.start.asks
    other = room.mailbox(Counting(), consumer_id="other", config=config)
    await polled(other)
    assert not await asking(room)
    assert found[0].run_id in (await other.why_not(found[1].run_id)).text
    room.passes(minutes=1)
    await other.run_sweep()
    await polled(other)
    assert len(await asking(room)) == 1


@both_engines
async def test_two_workers_of_one_database_ask_once_and_begin_no_more_than_may(room):
    executor, config = Counting(), budgets(of_all(DAY, runs=5))
    await submitted(room.mailbox(Counting(), consumer_id="writer", config=NO_WORK), 30)
    workers = [room.mailbox(executor, consumer_id=name, config=config) for name in ("one", "two")]
    for worker in workers:
        await worker.start_lifecycle_ready()

    async def all_held():
        due = await room.stores.store.read(lambda tx: tx.runs.dispatches.due_threads(1))
        return not due and await asking(room)

    for begun in (5, 10, 15):
        [_] = await eventually(all_held)
        assert executor.run_count == begun
        await answered(room, workers[begun % 2])
    assert len(await asking(room)) <= 1


async def test_an_answer_that_is_repeated_grants_once(room):
    executor = Counting()
    mailbox = room.mailbox(executor, config=budgets(TOTAL))
    await submitted(mailbox, 8)
    [asker] = await asking(room)
    idle = room.mailbox(Counting(), consumer_id="idle", config=NO_WORK)
    for _ in range(2):
        await idle.submit_background(answer(asker).delivered(tenant="acme"))
    scope = asker.open_tickets[0].arguments["scope"]
    assert (await room.stores.threads.spending([scope]))[scope] == Spending(scope=scope, runs=1)
    with pytest.raises(errors.StaleDecision):
        await idle.submit_background(answer(asker, replace(NO, decision_id="late")))
    await polled(mailbox)
    assert executor.run_count == 4


async def test_a_yes_is_enough_also_where_more_was_used_than_may(room):
    executor = Spender(cost_micros=9_000_000)
    mailbox = room.mailbox(executor, config=budgets(of_all(cost_micros=1_000_000)))
    await submitted(mailbox, 1, prefix="first")
    await submitted(mailbox, 1, prefix="second")
    assert "9.00 of 1.00 USD" in (await answered(room, mailbox)).open_tickets[0].reason
    assert executor.run_count == 2


async def test_a_run_at_work_is_not_cut_off(room):
    executor = Blocking()
    mailbox = room.mailbox(executor, config=budgets(of_all(runs=1)))
    first, _ = [await mailbox.submit_background(ask(thread)) for thread in ("t0", "t1")]
    await eventually(lambda: asking(room))
    executor.release.set()
    await room.acked(first)
    assert executor.run_count == 1


async def test_who_waits_for_a_run_is_held_like_others_while_one_asks(room):
    executor = Counting()
    mailbox = room.mailbox(executor, config=budgets(of_all(runs=1)))
    await submitted(mailbox, 1)
    for thread in ("now", "later"):
        last, _ = await mailbox.submit(ask(thread))
        await mailbox.settled()
        assert len(await asking(room)) == 1
    assert (await mailbox.why_not(last.dispatch_id)).why == "over_budget"
    assert executor.run_count == 1
    await answered(room, mailbox)
    assert executor.run_count == 2


async def test_other_work_of_a_conversation_does_not_overtake_what_is_held(room):
    executor = Counting()
    mailbox = room.mailbox(executor, config=budgets(Budget(per=BudgetScope.KEY, runs=1)))
    await submitted(mailbox, 2, prefix="k", limit_key="model")
    for key in ("model", "other"):
        await mailbox.submit_background(ask("c", limit_key=key))
    await polled(mailbox)
    assert [one.thread_id for one in executor.activations] == ["k0"]


@pytest.mark.parametrize("window", [None, DAY])
async def test_the_built_in_runtime_goes_on_as_if_it_had_not_been_held(room, window):
    model = ScriptedModel([InferenceResult.text(text) for text in ("A", "B")])
    async with runtime_of(room, model) as runtime:
        mailbox = room.mailbox(runtime, config=budgets(Budget(per=BudgetScope.THREAD, window=window, runs=1)))
        for text in ("a", "b"):
            await mailbox.submit_background(ask("t", text, agent_id="agent"))
            await mailbox.settled()
        asker = await answered(room, mailbox)
    run = await room.run(asker)
    assert (run.status, run.final_output) == (RunStatus.DONE, "B")
    assert [message.text() for message in model.requests[-1].messages] == ["a", "A", "b"]


@each_row(
    "window, zone, now, name, ends",
    [
        (HOUR, "UTC", "2026-11-23 14:59:59", "2026-11-23T14:00", "2026-11-23 15:00"),
        (DAY, "UTC", "2026-11-23 00:00", "2026-11-23", "2026-11-24 00:00"),
        (MONTH, "UTC", "2026-12-31 23:59", "2026-12", "2027-01-01 00:00"),
        (MONTH, "UTC", "2028-01-31 12:00", "2028-01", "2028-02-01 00:00"),
        (DAY, "Europe/Berlin", "2026-11-23 23:30", "2026-11-24+01:00", "2026-11-24 23:00"),
        (DAY, "Europe/Berlin", "2026-10-25 12:00", "2026-10-25+02:00", "2026-10-25 23:00"),
        (MONTH, "Europe/Berlin", "2026-10-31 23:00", "2026-11+01:00", "2026-11-30 23:00"),
        (MONTH, "America/New_York", "2026-03-01 04:59", "2026-02-05:00", "2026-03-01 05:00"),
        (HOUR, "Asia/Kolkata", "2026-11-23 14:00", "2026-11-23T19:00+05:30", "2026-11-23 14:30"),
        (HOUR, "Europe/Berlin", "2026-10-25 00:30", "2026-10-25T02:00+02:00", "2026-10-25 01:00"),
        (HOUR, "Europe/Berlin", "2026-10-25 01:30", "2026-10-25T02:00+01:00", "2026-10-25 02:00"),
    ],
)
def test_windows_follow_the_calendar_of_their_zone(window, zone, now, name, ends):
    assert find_window(window, zone, instant(now)) == (name, instant(ends))


async def test_a_month_begins_where_its_zone_says(room):
    at(room, "2026-11-30 22:59")
    executor = Counting()
    mailbox = room.mailbox(executor, config=budgets(ONE_A_MONTH))
    await submitted(mailbox, 2)
    assert said(executor) == [["go"]]
    room.passes(minutes=1)
    await polled(mailbox)
    assert executor.run_count == 2


def test_a_budget_that_cannot_be_is_refused():
    for given, words in (
        ({}, "needs at least one limit"),
        ({"runs": -1}, "`runs` of a budget must be an integer of at least 0"),
        ({"runs": 1, "zone": "Mars/Olympus"}, "budget's time zone is unknown"),
        ({"runs": 1, "zone": "../x"}, "budget's time zone is unknown"),
    ):
        with pytest.raises(errors.ConfigError, match=words):
            of_all(DAY, **given)
    with pytest.raises(errors.ConfigError, match="two budgets limit tokens"):
        budgets(of_all(DAY, tokens=1), of_all(DAY, runs=1, tokens=2))
    budgets(of_all(DAY, tokens=1), of_all(DAY, runs=1), of_all(tokens=9))

"""A budget that is used up: one run asks for all, the others stay queued until a yes, or until its window ends."""

from datetime import UTC, datetime, timedelta

import pytest

from dispatch_room import Blocking, Counting, Deaf, RunActivation, dispatch_in, done, eventually
from dispatch_runtime import runtime_of
from postroom.contracts.budgets import Budget, BudgetScope, BudgetWindow, Spending, window_of
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import ConfigError, StaleDecision
from postroom.contracts.inference import InferenceResult
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ClaimRequest, RunQuery
from postroom.contracts.runs import RunStatus, Usage
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.budgets import Budgets
from postroom.dispatch.completion import ClaimAsk, claimed_within
from postroom.dispatch.config import MailboxConfig
from postroom.runtime import ScriptedModel

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
DAILY = Budget(per=BudgetScope.TENANT, window=BudgetWindow.DAY, runs=2)
TOTAL = Budget(per=BudgetScope.TENANT, runs=2)
BERLIN = Budget(per=BudgetScope.ALL, window=BudgetWindow.MONTH, zone="Europe/Berlin", runs=1)
YES = ToolCallResume(decision_id="yes", result={"approved": True}, by="Ann")
NO = ToolCallResume(decision_id="no", result={"approved": False}, by="Ann")


def with_budgets(*budgets: Budget, **more) -> MailboxConfig:
    return MailboxConfig(budgets=budgets, **more)


async def submitted(mailbox, count: int, *, prefix: str = "t", agent: str | None = None, **delivery):
    """Submit so many runs on threads of their own, and have those executed that may be."""
    delivery = delivery or {"tenant": "acme"}
    found = []
    for number in range(count):
        request = RunActivation.new(f"{prefix}{number}", ["go"], agent_id=agent).delivered(**delivery)
        found.append(await mailbox.submit_background(request))
    await mailbox.settled()
    return found


async def asking(room) -> list:
    """Return the runs with an open question, each once for each."""
    runs = await room.stores.threads.list_runs(RunQuery(statuses=(RunStatus.WAITING,)))
    return [run for run in runs for _ in run.open_tickets]


async def statuses(room, submissions) -> list[RunStatus]:
    return [(await room.stores.threads.load_run(one.run_id)).status for one in submissions]


async def answered(mailbox, run, decision=YES):
    """Answer as pages and chats do."""
    [ticket] = run.open_tickets
    request = RunActivation.new(
        run.thread_id, [], continue_run_id=run.run_id, decisions=[(ticket.tool_call_id, decision)]
    )
    await mailbox.submit_background(request)
    await mailbox.settled()


async def polled(mailbox) -> None:
    """Start all that is due."""
    idle = 0
    while idle < 2:
        idle = 0 if await mailbox.poll() else idle + 1
        await mailbox.settled()


def at(room, text: str) -> None:
    """Move the clock to an instant in UTC that is still to come."""
    instant = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    room.clock.advance(timedelta(milliseconds=int(instant * 1_000) - room.clock.now()))


async def test_one_run_asks_for_all_and_a_yes_has_all_go_on(room):
    executor = Counting()
    budget = Budget(per=BudgetScope.TENANT, window=BudgetWindow.DAY, runs=30)
    mailbox = room.mailbox(executor, config=with_budgets(budget))
    found = await submitted(mailbox, 80)
    assert executor.run_count == 30
    [asker] = await asking(room)
    assert asker.run_id == found[30].run_id
    held = await mailbox.why_not(found[70].dispatch_id)
    assert held.why == "over_budget"
    assert held.text.startswith("The budget of acme for this day is used up: 30 of 30 runs.")
    assert f"run {asker.run_id} asks" in held.text
    assert held.until == asker.open_tickets[0].arguments["until"]
    await answered(mailbox, asker)
    await polled(mailbox)
    assert executor.run_count == 60
    [again] = await asking(room)
    await answered(mailbox, again)
    await polled(mailbox)
    assert await statuses(room, found) == [RunStatus.DONE] * 80
    assert not await asking(room)


async def test_what_is_held_is_not_tried_again_and_again(room):
    mailbox = room.mailbox(Counting(), config=with_budgets(DAILY))
    await submitted(mailbox, 6)
    await submitted(mailbox, 1, prefix="other", tenant="other")
    assert await room.stores.store.read(lambda tx: tx.runs.dispatches.due_threads(10)) == ()
    assert await room.stores.dispatches.next_due_at() is None


async def test_a_new_window_begins_with_nothing_and_withdraws_the_question(room):
    at(room, "2026-11-23 22:00")
    executor = Counting()
    mailbox = room.mailbox(executor, config=with_budgets(DAILY))
    found = await submitted(mailbox, 4)
    [asker] = await asking(room)
    room.clock.advance(2 * HOUR - timedelta(milliseconds=1))
    await polled(mailbox)
    assert executor.run_count == 2
    room.clock.advance(timedelta(milliseconds=1))
    await polled(mailbox)
    assert await statuses(room, found) == [RunStatus.DONE] * 4
    assert not await asking(room)
    told = (await room.stores.threads.load_run(asker.run_id)).answered
    assert [one.decision.by for one in told] == ["postroom"]
    scopes = ["tenant:acme/day/2026-11-23", "tenant:acme/day/2026-11-24"]
    spent = await room.stores.threads.spending(scopes)
    assert [spent[scope].runs for scope in scopes] == [1, 2]


async def test_a_mailbox_that_rests_goes_on_by_itself_when_the_window_ends(room):
    at(room, "2026-11-23 23:59:59")
    executor = Counting()
    mailbox = room.mailbox(executor, config=with_budgets(DAILY, poll_interval=2 * DAY))
    await mailbox.start_lifecycle_ready()
    found = await submitted(mailbox, 4)
    await eventually(lambda: asking(room))
    room.clock.advance(timedelta(seconds=1))
    for one in found:
        await dispatch_in(room.stores, one.dispatch_id, RunDispatchStatus.ACKED)

    async def is_done():
        return await statuses(room, found) == [RunStatus.DONE] * 4 or None

    await eventually(is_done)


async def test_old_windows_are_forgotten(room):
    mailbox = room.mailbox(Counting(), config=with_budgets(DAILY))
    await submitted(mailbox, 1)
    name, until = window_of(BudgetWindow.DAY, "UTC", room.clock.now())
    scope = f"tenant:acme/day/{name}"
    for passed, runs in ((timedelta(0), 1), (DAY, 1), (2 * DAY, 0)):
        room.clock.advance(timedelta(milliseconds=until - room.clock.now()) + passed)
        await mailbox.run_gc()
        assert (await room.stores.threads.spending([scope]))[scope].runs == runs


@pytest.mark.parametrize(
    ("per", "agent", "delivery", "other_agent", "other"),
    [
        (BudgetScope.KEY, None, {"limit_key": "model"}, None, {"limit_key": "other"}),
        (BudgetScope.AGENT, "ada", {"tenant": "acme"}, "bo", {"tenant": "acme"}),
        (BudgetScope.TENANT, None, {"tenant": "acme"}, None, {"limit_key": "acme"}),
    ],
)
async def test_each_tenant_key_and_agent_has_a_budget_of_its_own(
    room, per, agent, delivery, other_agent, other
):
    executor = Counting()
    mailbox = room.mailbox(executor, config=with_budgets(Budget(per=per, runs=1)))
    await submitted(mailbox, 3, prefix="a", agent=agent, **delivery)
    await submitted(mailbox, 1, prefix="b", agent=other_agent, **other)
    assert [one.thread_id for one in executor.activations] == ["a0", "b0"]
    [asker] = await asking(room)
    await answered(mailbox, asker)  # who answers says nothing about tenant and key
    assert [one.thread_id for one in executor.activations[2:]] == ["a1"]
    await polled(mailbox)
    assert len(await asking(room)) == 1


async def test_two_budgets_of_the_same_runs_count_by_themselves(room):
    class Spender(Deaf):
        async def execute(self, activation, sink):
            return replace(done(activation), usage=Usage(input_tokens=10))

    executor = Spender()
    hourly = Budget(per=BudgetScope.ALL, window=BudgetWindow.HOUR, runs=2)
    daily = Budget(per=BudgetScope.ALL, window=BudgetWindow.DAY, runs=5)
    tokens = Budget(per=BudgetScope.ALL, window=BudgetWindow.DAY, tokens=70)
    at(room, "2026-11-23 10:00")
    mailbox = room.mailbox(executor, config=with_budgets(hourly, daily, tokens, max_concurrent_runs=1))
    await submitted(mailbox, 12)
    await polled(mailbox)
    counts = []
    for _ in range(4):
        counts.append(executor.run_count)
        room.clock.advance(HOUR)
        await polled(mailbox)
    assert counts == [2, 4, 5, 5]
    [asker] = await asking(room)
    assert "5 of 5 runs" in asker.open_tickets[0].reason
    await answered(mailbox, asker)
    room.clock.advance(HOUR)
    await polled(mailbox)
    assert executor.run_count == 7
    [asker] = [run for run in await asking(room) if "day" in run.open_tickets[0].reason]
    assert "70 of 70 tokens" in asker.open_tickets[0].reason


async def test_a_no_holds_until_the_window_ends(room):
    at(room, "2026-11-23 12:00")
    executor = Counting()
    mailbox = room.mailbox(executor, config=with_budgets(DAILY))
    found = await submitted(mailbox, 4)
    [asker] = await asking(room)
    await answered(mailbox, asker, NO)
    found += await submitted(mailbox, 1, prefix="later")
    await polled(mailbox)
    assert executor.run_count == 2
    assert not await asking(room)
    for one in found[2:]:
        assert "a person has said no" in (await mailbox.why_not(one.run_id)).text
    room.clock.advance(12 * HOUR)
    await polled(mailbox)
    [again] = await asking(room)
    assert executor.run_count == 4
    await answered(mailbox, again)
    await polled(mailbox)
    assert await statuses(room, found) == [RunStatus.DONE] * 5


async def test_without_a_window_a_no_leaves_the_question_open(room):
    executor = Counting()
    mailbox = room.mailbox(executor, config=with_budgets(TOTAL))
    found = await submitted(mailbox, 4)
    [asker] = await asking(room)
    await answered(mailbox, asker, NO)
    await polled(mailbox)
    assert executor.run_count == 2
    [again] = await asking(room)
    await answered(mailbox, again)
    await polled(mailbox)
    assert await statuses(room, found) == [RunStatus.DONE] * 4


async def test_when_the_run_that_asks_is_cancelled_another_asks(room):
    mailbox = room.mailbox(Counting(), config=with_budgets(DAILY))
    found = await submitted(mailbox, 5)
    [asker] = await asking(room)
    assert await mailbox.cancel(asker.run_id)
    await polled(mailbox)
    [another] = await asking(room)
    assert another.run_id == found[3].run_id
    assert (await mailbox.why_not(found[4].run_id)).why == "over_budget"
    assert await mailbox.cancel(found[4].run_id)
    assert [run.run_id for run in await asking(room)] == [another.run_id]


async def test_a_process_that_dies_as_it_asks_leaves_one_question(room):
    budgets = with_budgets(Budget(per=BudgetScope.ALL, window=BudgetWindow.DAY, runs=0))
    writer = room.mailbox(Counting(), consumer_id="writer", config=MailboxConfig(max_concurrent_runs=0))
    found = await submitted(writer, 3)
    # It comes to claiming the run that is to ask, and not to writing what that waits for.
    asks = ClaimAsk(request=ClaimRequest(consumer="dead", lease_ms=30_000), instance_id="dead")
    claimed = await room.stores.store.write(
        lambda tx: claimed_within(tx, "t0", asks, (), Budgets(budgets.budgets))
    )
    assert claimed.asks
    other = room.mailbox(Counting(), consumer_id="other", config=budgets)
    await polled(other)
    assert not await asking(room)
    assert found[0].run_id in (await other.why_not(found[1].run_id)).text
    room.clock.advance(timedelta(minutes=1))
    await other.run_sweep()
    await polled(other)
    assert len(await asking(room)) == 1


async def test_two_workers_of_one_database_ask_once_and_begin_no_more_than_may(room):
    executor = Counting()
    budgets = with_budgets(Budget(per=BudgetScope.ALL, window=BudgetWindow.DAY, runs=5))
    writer = room.mailbox(Counting(), consumer_id="writer", config=MailboxConfig(max_concurrent_runs=0))
    found = await submitted(writer, 30)
    workers = [room.mailbox(executor, consumer_id=name, config=budgets) for name in ("one", "two")]
    for worker in workers:
        await worker.start_lifecycle_ready()

    async def all_held():
        due = await room.stores.store.read(lambda tx: tx.runs.dispatches.due_threads(1))
        return (not due and await asking(room)) or None

    for begun in (5, 10, 15):
        [asker] = await eventually(all_held)
        assert executor.run_count == begun
        await answered(workers[begun % 2], asker)
    assert (await statuses(room, found)).count(RunStatus.WAITING) <= 1


async def test_an_answer_that_is_repeated_grants_once(room):
    executor = Counting()
    mailbox = room.mailbox(executor, config=with_budgets(TOTAL))
    await submitted(mailbox, 8)
    [asker] = await asking(room)
    [ticket] = asker.open_tickets
    request = RunActivation.new(
        asker.thread_id, [], continue_run_id=asker.run_id, decisions=[(ticket.tool_call_id, YES)]
    )
    idle = room.mailbox(Counting(), consumer_id="idle", config=MailboxConfig(max_concurrent_runs=0))
    for _ in range(2):
        await idle.submit_background(request)
    scope = ticket.arguments["scope"]
    assert (await room.stores.threads.spending([scope]))[scope] == Spending(scope=scope, runs=1)
    late = replace(request, decisions=((ticket.tool_call_id, replace(NO, decision_id="late")),))
    with pytest.raises(StaleDecision):
        await idle.submit_background(late)
    await polled(mailbox)
    assert executor.run_count == 4


async def test_a_yes_is_enough_also_where_more_was_used_than_may(room):
    class Greedy(Deaf):
        async def execute(self, activation, sink):
            return replace(done(activation), usage=Usage(cost_micros=9_000_000))

    executor = Greedy()
    budget = Budget(per=BudgetScope.ALL, cost_micros=1_000_000)
    mailbox = room.mailbox(executor, config=with_budgets(budget))
    await submitted(mailbox, 2)
    [asker] = await asking(room)
    assert "9.00 of 1.00 in money" in asker.open_tickets[0].reason
    await answered(mailbox, asker)
    assert executor.run_count == 2


async def test_a_run_at_work_is_not_cut_off_and_one_that_is_tried_again_goes_on(room):
    executor = Blocking()
    mailbox = room.mailbox(executor, config=with_budgets(Budget(per=BudgetScope.ALL, runs=1)))
    [first] = await submitted_without_waiting(mailbox, "t0")
    await executor.started.get()
    await submitted_without_waiting(mailbox, "t1")
    await eventually(lambda: asking(room))
    executor.release.set()
    await dispatch_in(room.stores, first.dispatch_id, RunDispatchStatus.ACKED)
    assert executor.run_count == 1


async def submitted_without_waiting(mailbox, *threads: str):
    return [await mailbox.submit_background(RunActivation.new(one, ["go"])) for one in threads]


async def test_who_waits_for_a_run_is_held_like_others_while_one_asks(room):
    executor = Counting()
    mailbox = room.mailbox(executor, config=with_budgets(Budget(per=BudgetScope.ALL, runs=1)))
    await submitted(mailbox, 1)
    _, _ = await mailbox.submit(RunActivation.new("now", ["go"]))
    await mailbox.settled()
    [asker] = await asking(room)
    later, _ = await mailbox.submit(RunActivation.new("later", ["go"]))
    await mailbox.settled()
    assert len(await asking(room)) == 1
    assert (await mailbox.why_not(later.dispatch_id)).why == "over_budget"
    assert executor.run_count == 1
    await answered(mailbox, asker)
    assert executor.run_count == 2


async def test_other_work_of_a_conversation_does_not_overtake_what_is_held(room):
    executor = Counting()
    mailbox = room.mailbox(executor, config=with_budgets(Budget(per=BudgetScope.KEY, runs=1)))
    await submitted(mailbox, 2, prefix="k", limit_key="model")
    for key in ("model", "other"):
        request = RunActivation.new("c", [key]).delivered(limit_key=key)
        await mailbox.submit_background(request)
    await polled(mailbox)
    assert [one.thread_id for one in executor.activations] == ["k0"]


@pytest.mark.parametrize(
    ("window", "zone", "instant", "name", "ends"),
    [
        (BudgetWindow.HOUR, "UTC", "2026-11-23 14:59:59", "2026-11-23T14:00", "2026-11-23 15:00"),
        (BudgetWindow.DAY, "UTC", "2026-11-23 00:00", "2026-11-23", "2026-11-24 00:00"),
        (BudgetWindow.MONTH, "UTC", "2026-12-31 23:59", "2026-12", "2027-01-01 00:00"),
        (BudgetWindow.MONTH, "UTC", "2028-01-31 12:00", "2028-01", "2028-02-01 00:00"),
        (BudgetWindow.DAY, "Europe/Berlin", "2026-11-23 23:30", "2026-11-24+01:00", "2026-11-24 23:00"),
        (BudgetWindow.DAY, "Europe/Berlin", "2026-10-25 12:00", "2026-10-25+02:00", "2026-10-25 23:00"),
        (BudgetWindow.MONTH, "Europe/Berlin", "2026-10-31 23:00", "2026-11+01:00", "2026-11-30 23:00"),
        (BudgetWindow.MONTH, "America/New_York", "2026-03-01 04:59", "2026-02-05:00", "2026-03-01 05:00"),
        (BudgetWindow.HOUR, "Asia/Kolkata", "2026-11-23 14:00", "2026-11-23T19:00+05:30", "2026-11-23 14:30"),
        (
            BudgetWindow.HOUR,
            "Europe/Berlin",
            "2026-10-25 00:30",
            "2026-10-25T02:00+02:00",
            "2026-10-25 01:00",
        ),
        (
            BudgetWindow.HOUR,
            "Europe/Berlin",
            "2026-10-25 01:30",
            "2026-10-25T02:00+01:00",
            "2026-10-25 02:00",
        ),
    ],
)
def test_windows_follow_the_calendar_of_their_zone(window, zone, instant, name, ends):
    def of(text: str) -> int:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000

    assert window_of(window, zone, of(instant)) == (name, of(ends))


async def test_a_month_begins_where_its_zone_says(room):
    at(room, "2026-11-30 22:59")
    executor = Counting()
    mailbox = room.mailbox(executor, config=with_budgets(BERLIN))
    await submitted(mailbox, 2)
    assert executor.run_count == 1
    room.clock.advance(timedelta(minutes=1))
    await polled(mailbox)
    assert executor.run_count == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "needs a limit"),
        ({"runs": -1}, "runs of a budget must be a whole number from 0 up"),
        ({"runs": 1, "zone": "Mars/Olympus"}, "time zone of a budget is not known"),
        ({"runs": 1, "zone": "../x"}, "time zone of a budget is not known"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        Budget(per=BudgetScope.ALL, window=BudgetWindow.DAY, **given)


def test_two_limits_of_the_same_runs_for_the_same_time_are_refused():
    one = {"per": BudgetScope.ALL, "window": BudgetWindow.DAY}
    with pytest.raises(ConfigError, match="two budgets limit tokens"):
        with_budgets(Budget(**one, tokens=1), Budget(**one, runs=1, tokens=2))
    with_budgets(Budget(**one, tokens=1), Budget(**one, runs=1), Budget(per=BudgetScope.ALL, tokens=9))


@pytest.mark.parametrize("window", [None, BudgetWindow.DAY])
async def test_the_built_in_runtime_goes_on_as_if_it_had_not_been_held(room, window):
    model = ScriptedModel([InferenceResult.text(text) for text in ("A", "B")])
    budget = Budget(per=BudgetScope.ALL, window=window, runs=1)
    async with runtime_of(room, model) as runtime:
        mailbox = room.mailbox(runtime, config=with_budgets(budget))
        for text in ("a", "b"):
            await mailbox.submit_background(RunActivation.new("t", [text], agent_id="agent"))
            await mailbox.settled()
        [asker] = await asking(room)
        await answered(mailbox, asker)
    run = await room.stores.threads.load_run(asker.run_id)
    assert (run.status, run.final_output) == (RunStatus.DONE, "B")
    assert [message.text() for message in model.requests[-1].messages] == ["a", "A", "b"]

"""The kit for programs that run on the mailbox: time by hand, planned failures, and a check that can fail."""

from datetime import timedelta

import pytest

from embedded_room import echo, on
from postroom import MailboxConfig, State, testing
from postroom.contracts.run_stores import RunQuery
from table_rows import each_row


async def test_what_is_due_later_waits_for_the_clock(manual):
    async def nap(run):
        await run.sleep(timedelta(hours=2))
        return "rested"

    async with manual(nap) as mailbox:
        handle = await mailbox.enqueue("t", "go", delay=timedelta(hours=1))
        seen = []
        for _ in range(4):
            await mailbox.run_until_idle()
            seen.append((await handle.status()).state)
            mailbox.clock.advance(timedelta(hours=1))
        assert seen == [State.QUEUED, State.WAITING, State.WAITING, State.DONE]
        assert await testing.check(mailbox) == []


async def test_work_that_fails_as_planned_is_tried_again_in_its_time(manual):
    async with manual(testing.fails(2, echo)) as mailbox:
        handle = await mailbox.enqueue("t", "go", retry_delay=timedelta(hours=1))
        await mailbox.run_until_idle()
        assert (await handle.status()).state is not State.DONE
        for _ in range(2):
            mailbox.clock.advance(timedelta(hours=2))
            await mailbox.run_until_idle()
        assert await handle.result() == "you said go"


async def test_work_that_hangs_is_named_and_ends_when_it_is_cancelled(manual):
    work = testing.Hanging()
    async with manual(work, MailboxConfig(max_run_ms=3_600_000)) as mailbox:
        first, second = [await mailbox.enqueue(thread, "go") for thread in ("a", "b")]
        assert {(await work.begun()).id for _ in range(2)} == {first.id, second.id}
        with pytest.raises(TimeoutError, match=f"run {first.id} of thread a"):
            await mailbox.run_until_idle(timeout=0)
        await first.cancel()
        mailbox.clock.advance(timedelta(hours=1))
        await mailbox.run_until_idle()
        assert [(await one.status()).state for one in (first, second)] == [State.CANCELLED, State.FAILED]
        assert work.cancelled == [first.id, second.id]


@on("memory", "postgres")
async def test_a_process_that_dies_in_a_step_does_the_step_again_and_no_other(manual):
    done = []

    async def sell(run):
        await run.step("charge", done.append, "charge")
        await run.step("send", done.append, "send")
        return "sold"

    async with manual(testing.crashes(sell, in_step="send")) as mailbox:
        handle = await mailbox.enqueue("shop", "go")
        await mailbox.run_until_idle()
        mailbox.clock.advance(timedelta(minutes=1))  # on PostgreSQL others wait for the lease to end
        await mailbox.run_until_idle()
        assert await handle.result() == "sold"
        assert done == ["charge", "send", "send"]
        assert await testing.check(mailbox, accepted={handle.id: "shop"}) == []


def execution(run, began, ended, **more):
    facts = {"thread_id": "t", "owner": "process 1"} | more
    return testing.Execution(run_id=run, began=began, ended=ended, **facts)


IN_TURN = (execution("a", 0, 5), execution("b", 5, 9), execution("c", 6, 8, thread_id="u"))
BAD = {
    "beside each other": (
        [execution("b", 4, 6, owner="process 2")],
        "thread t had two owners at once: run a by process 1 (attempt 1, 0 to 5), and run b by process 2 "
        "(attempt 1, 4 to 6)",
    ),
    "within a long one": (
        [execution("b", 3, 4), execution("c", 4, 4)],
        "thread t had two owners at once: run a by process 1 (attempt 1, 0 to 5), and run c by process 1 "
        "(attempt 1, 4 to 4)",
    ),
    "epochs": (
        [execution("b", 5, 6, epoch=2), execution("c", 7, 8, epoch=1)],
        "run c of thread t started in epoch 1, after run b in epoch 2",
    ),
    "attempts": (
        [execution("b", 5, 6, attempt=3), execution("b", 7, 8, attempt=2)],
        "run b of thread t started attempt 2 after attempt 3",
    ),
    "threads": ([execution("a", 7, 8, thread_id="u")], "run a was executed on thread t, and on thread u"),
    "lost": ([], "run b of thread t was accepted but has not ended"),
    "strange": ([execution("z", 7, 8)], "run z of thread t was executed but never accepted"),
    "too many": (
        [execution("b", 4, 6, thread_id="u"), execution("c", 4, 5, thread_id="v")],
        "3 runs were executed at once, but the limit is 2: at 4 a of thread t, b of thread u, c of thread v",
    ),
}


def test_a_history_in_which_all_is_well_has_no_findings():
    history = testing.History(
        executions=IN_TURN, accepted={"a": "t", "b": "t", "c": "u"}, ended=frozenset("abc")
    )
    assert history.findings(at_once=2) == []
    assert history.most_at_once == 2


@each_row("what", BAD)
def test_a_history_that_breaks_a_promise_is_found_out(what):
    more, finding = BAD[what]
    accepted = dict.fromkeys("abc", "t")
    ended = frozenset("ac") if what == "lost" else frozenset("abc")
    history = testing.History(executions=[IN_TURN[0], *more], accepted=accepted, ended=ended)
    assert finding in history.findings(at_once=2)


async def test_what_workers_write_is_read_as_the_history_of_all_of_them(manual, tmp_path):
    async def work(run):
        if run.attempt == 1 and run.text == "fail":
            raise ConnectionError("away")
        await log.step(run)
        return "done"

    log = testing.ExecutionLog(tmp_path / "log")
    async with manual(log.observed(work), MailboxConfig(default_retry_delay_ms=0)) as mailbox:
        handles = [await mailbox.enqueue(thread, text) for thread, text in (("a", "go"), ("b", "fail"))]
        await mailbox.run_until_idle()
        accepted = {handle.id: handle.thread_id for handle in handles}
        history = testing.History.read(tmp_path / "log", accepted=accepted)
        assert sorted((one.thread_id, one.attempt) for one in history.executions) == [
            ("a", 1),
            ("b", 1),
            ("b", 2),
        ]
        assert await testing.check(mailbox, history=history, accepted=accepted) == []
        log.close()


async def broken(mailbox, statement):
    """Change the database in a way that postroom never does."""

    def change(tx):
        connection = tx.sql.connection
        connection.execute(statement) if tx.sql.dialect == "sqlite" else connection.run_script(statement)

    await mailbox.stores.store.write(change)


EVENT = (
    "INSERT INTO events (event_id, event_kind, payload, sequences, created_at, origin, visibility, schema_version)"
    " VALUES ('x', 'KIND', '{}', '{}', 0, 'test', 'internal', 1);"
)
CLAIMS = (
    "INSERT INTO testing_claims (number, is_claim, thread_id, run_id, token, owner, attempt, epoch)"
    " VALUES (98, 1, 'chat', '<over>', 'y', 'a', 3, 5), (99, 1, 'chat', 'z', 'x', 'b', 1, 4)"
)
PLACE = "INSERT INTO event_scopes (scope, seq, event_id) VALUES ('run:<over>', 9, 'x');"
BROKEN = {
    "lost": (
        ["DELETE FROM run_dispatches WHERE run_id = '<open>'"],
        "run <open> of thread late is created, but neither queued nor claimed, so it will not be executed",
    ),
    "asleep": (
        ["DELETE FROM run_dispatches WHERE run_id = '<asleep>' AND is_open = 1"],
        "run <asleep> of thread nap is waiting, but neither queued nor claimed, so it will not be executed",
    ),
    "gone": (
        ["DELETE FROM runs WHERE run_id = '<over>'"],
        "run <over> of thread chat was accepted but does not exist",
    ),
    "without a run": (
        ["DELETE FROM runs WHERE run_id = '<open>'"],
        "run <open> of thread late is queued but does not exist",
    ),
    "message": (
        ["DELETE FROM run_messages WHERE thread_id = 'chat' AND seq = 1"],
        "message <message> of run <over> of thread chat was accepted but does not exist",
    ),
    "epoch": (
        ["INSERT INTO dispatch_epochs (thread_id, epoch) VALUES ('late', 3)"],
        "run <open> of thread late is queued in epoch 0, but the thread is in epoch 3",
    ),
    "silent": (
        ["DELETE FROM event_scopes WHERE scope = 'run:<over>'"],
        "run <over> of thread chat has ended, but its log has no such event",
    ),
    "twice": (
        [EVENT.replace("KIND", "RunEnded"), PLACE],
        "run <over> of thread chat has ended twice: events 2 and 9 of its log",
    ),
    "afterwards": (
        [EVENT.replace("KIND", "StepStored"), PLACE],
        "run <over> of thread chat ended with event 2 of its log, but event 9 (StepStored) follows",
    ),
    "another thread": (
        ['UPDATE runs SET body = replace(body, \'"thread_id":"chat"\', \'"thread_id":"other"\')'],
        "run <over> was accepted for another thread than other",
    ),
    "recorded": (
        [CLAIMS],
        "thread chat had two owners at once: run <over> by a (attempt 3, 98 to 100), and run z by b (attempt 1, 99 to 100)",
    ),
    "recorded epochs": (
        [CLAIMS],
        "run z of thread chat started in epoch 4, after run <over> in epoch 5",
    ),
}


async def seen_after(manual, statements):
    """Return the findings for a database with this change, and the names of the runs."""

    async def work(run):
        if run.thread_id == "nap":
            await run.sleep(timedelta(hours=1))
        await run.step("once", lambda: 1)
        return "done"

    async with manual(work) as mailbox:
        await testing.record(mailbox)
        over = await mailbox.enqueue("chat", "go")
        asleep = await mailbox.enqueue("nap", "go")
        late = await mailbox.enqueue("late", "go", delay=timedelta(hours=1))
        await mailbox.run_until_idle()
        accepted = {handle.id: handle.thread_id for handle in (over, asleep, late)}
        assert await testing.check(mailbox, accepted=accepted, at_once=2) == []
        run = await mailbox.stores.threads.load_run(over.id)
        message_id = run.input.trigger_message_ids[0]
        names = {"<over>": over.id, "<asleep>": asleep.id, "<open>": late.id, "<message>": message_id}
        for statement in statements:
            await broken(mailbox, named(statement, names))
        return await testing.check(mailbox, accepted=accepted, at_once=2), names


def named(text, names):
    for name, id in names.items():
        text = text.replace(name, id)
    return text


@pytest.mark.parametrize("what", BROKEN)
async def test_a_database_that_breaks_a_promise_is_found_out(what):
    statements, finding = BROKEN[what]
    found, names = await seen_after(testing.mailbox, statements)
    assert named(finding, names) in found


@on("memory", "postgres")
async def test_broken_promises_are_found_beside_each_other_on_every_engine(manual):
    several = [BROKEN[what] for what in ("asleep", "message", "epoch", "afterwards", "recorded")]
    found, names = await seen_after(manual, [each for statements, _ in several for each in statements])
    assert {named(finding, names) for _, finding in several} < set(found)


async def test_too_many_owners_are_found_in_the_record_of_the_database_and_in_its_queue(manual):
    work = testing.Hanging()
    async with manual(work) as mailbox:
        await testing.record(mailbox)
        handles = [await mailbox.enqueue(thread, "go") for thread in ("a", "b", "c")]
        runs = [await work.begun() for _ in handles]
        assert len(runs) == 3
        assert await testing.check(mailbox, at_once=3) == []
        by_queue, by_record = await testing.check(mailbox, at_once=2)
        assert by_queue == "3 runs are claimed at once, but the limit is 2"
        assert by_record.startswith("3 runs were executed at once, but the limit is 2: at ")
        assert all(f"{handle.id} of thread {handle.thread_id}" in by_record for handle in handles)


async def test_schedules_go_by_the_clock_of_the_test_also_behind_a_crash():
    async def work(run):
        return run.text

    async with testing.mailbox(work) as mailbox:
        await mailbox.schedules.add("poll", "feeds", "look", every=timedelta(hours=1))
        for times in (1, 2):
            mailbox.clock.advance(timedelta(hours=1))
            await mailbox.run_until_idle()
            runs = await mailbox.stores.threads.list_runs(RunQuery(thread_id="feeds"))
            assert [run.final_output for run in runs] == ["look"] * times
            await mailbox.crash()

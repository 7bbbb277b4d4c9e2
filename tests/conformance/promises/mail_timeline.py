"""Promises of a mail store about what happened within a span of time."""

from conformance.promises.given import an_office, put_message, reservation
from postroom.contracts.timeline import Span
from postroom.stores.mail.access import MailWrites
from postroom.stores.mail.store import MailStore
from postroom.testing.clock import ManualClock

DAY = Span(begin=100, end=200)


async def every_execution_of_a_run_is_an_attempt(store: MailStore, clock: ManualClock) -> None:
    """With its error, since when it waited to begin, and how long the run then waited for a person."""
    ada = (await an_office(store)).ada.id

    def happened(tx: MailWrites) -> None:
        tx.begin_run("r", ada, 10)
        tx.begin_run("r", ada, 20)
        tx.end_run("r", now=30, failed=True, error="HTTP 529 é" * 1_000)
        tx.begin_run("r", ada, 40)
        tx.end_run("r", now=50, waits_for={"q": 45})
        tx.begin_run("r", ada, 60)
        tx.end_run("r", now=70, failed=True, cancelled=True)
        tx.end_run("r", now=80)

    await store.write(happened)
    found = await store.read(lambda tx: tx.attempts_of_runs(["r"]))
    assert [(one.queued_at, one.began_at, one.ended_at, one.outcome, one.waited_until) for one in found] == [
        (10, 10, 20, "cut_off", None),
        (20, 20, 30, "failed", None),
        (30, 40, 50, "waiting", 60),
        (60, 60, 70, "cancelled", None),
    ]
    assert found[1].error.startswith("HTTP 529 é")
    assert len(found[1].error) == 2_000
    assert await store.read(lambda tx: tx.attempts_of_runs(["s"])) == []
    await store.write(lambda tx: tx.begin_run("s", ada, 5))
    await store.write(lambda tx: tx.end_run("s", now=6, waits_for={"q": 5}))
    await store.write(lambda tx: tx.withdraw_questions("s", ada, ["q"], now=9))
    assert [one.waited_until for one in await store.read(lambda tx: tx.attempts_of_runs(["s"]))] == [9]


async def attempts_of_a_span_are_grouped_but_for_those_to_be_seen(
    store: MailStore, clock: ManualClock
) -> None:
    """What ended well within one step is a group; what failed, waits or is at work stands alone."""
    here = await an_office(store)
    ada, ben = here.ada.id, here.ben.id

    def happened(tx: MailWrites) -> None:
        for number, at in enumerate((99, 100, 104, 109, 110, 150, 199, 200)):
            tx.begin_run(f"r{number}", ada, at)
            tx.end_run(f"r{number}", now=at + 3, failed=at in (104, 110), cancelled=at == 110)
        tx.begin_run("waits", ben, 120)
        tx.end_run("waits", now=130, waits_for={"q": 125})
        tx.begin_run("works", ben, 140)

    await store.write(happened)
    both = [ada, ben]
    groups = await store.read(lambda tx: tx.attempt_groups(both, DAY, step=10))
    assert [(one.agent_id, one.count, one.began_at, one.ended_at, one.is_cancelled) for one in groups] == [
        (ada, 2, 100, 112, False),
        (ada, 1, 110, 113, True),
        (ada, 1, 150, 153, False),
        (ada, 1, 199, 202, False),
    ]
    assert [(one.run_id, one.queued_at) for one in groups[1:]] == [("r4", 110), ("r5", 150), ("r6", 199)]
    alone = await store.read(lambda tx: tx.attempts_alone(both, DAY, limit=9))
    assert [one.run_id for one in alone] == ["r2", "waits", "works"]
    assert [one.run_id for one in await store.read(lambda tx: tx.attempts_alone(both, DAY, limit=1))] == [
        "works"
    ]
    assert await store.read(lambda tx: tx.attempt_count(both, DAY)) == (8, 2)
    assert await store.read(lambda tx: tx.attempt_count([ben], Span(begin=0, end=100))) == (0, 0)
    before = await store.read(lambda tx: tx.attempts_before(both, 100))
    assert [one.run_id for one in before] == ["r0"]
    assert await store.read(lambda tx: tx.attempts_alone([], DAY, limit=9)) == []


async def messages_of_a_span_are_found_and_counted(store: MailStore, clock: ManualClock) -> None:
    """Of a project, on a thread, or from and to an agent; hidden copies count for nobody."""
    here = await an_office(store)

    def happened(tx: MailWrites) -> list[int]:
        return [
            put_message(tx, here.ada, [here.ben], now=99, thread="t").id,
            put_message(tx, here.ada, [here.ben], now=100, thread="t").id,
            put_message(tx, here.ben, [here.cyd], now=150, thread="u").id,
            put_message(tx, here.ben, [here.ada], now=150, thread="u", kind="bcc").id,
            put_message(tx, here.cyd, [here.ben], now=199, thread="t").id,
            put_message(tx, here.ada, [here.ben], now=200, thread="t").id,
        ]

    ids = await store.write(happened)
    project = here.project.id

    async def found(**only: object) -> list[int]:
        wanted = {"limit": 9, **only}
        return [one.id for one in await store.read(lambda tx: tx.written(project, DAY, **wanted))]  # type: ignore[arg-type]

    assert await found() == ids[1:5]
    assert await found(limit=2) == ids[3:5]
    assert await found(thread_id="t") == [ids[1], ids[4]]
    assert await found(agent_id=here.cyd.id) == [ids[2], ids[4]]
    assert await found(agent_id=here.ada.id) == [ids[1]]
    assert await found(agent_id=here.cyd.id, thread_id="u") == [ids[2]]
    # With more in the span than is asked for, what else narrows them is looked up first.
    assert await found(limit=1, thread_id="t") == [ids[4]]
    assert await found(limit=1, agent_id=here.ada.id) == [ids[1]]
    assert await found(limit=1, agent_id=here.cyd.id) == [ids[4]]
    assert await found(limit=1, agent_id=here.cyd.id, thread_id="u") == [ids[2]]
    counts = await store.read(lambda tx: tx.written_counts(project, DAY, parts=4, most=9))
    assert counts == [1, 0, 2, 1]
    assert await store.read(lambda tx: tx.written_counts(project, DAY, parts=2, most=2)) == [1, 2]
    assert await store.read(lambda tx: (tx.begin_of(project), tx.begin_of(99))) == (99, None)


async def messages_into_another_project_are_found_and_counted(store: MailStore, clock: ManualClock) -> None:
    """Those that its agents were openly sent; and who took part in a project's newest messages."""
    here = await an_office(store)
    home, ids = here.project.id, (here.ada.id, here.ben.id, here.cyd.id)

    def happened(tx: MailWrites) -> tuple[int, int, list[int]]:
        other = tx.insert_project(
            slug="other", human_key="/other", spelling="/other", git_identity="", owner="", now=1
        ).id
        zoe = tx.insert_agent(other, name="Zoe", program="p", model="m", task_description="", now=1)
        sent = (
            put_message(tx, here.ada, [zoe], now=99),
            put_message(tx, here.ada, [zoe, here.ben], now=100),
            put_message(tx, here.ben, [here.cyd], now=150),
            put_message(tx, here.cyd, [zoe], now=160, kind="bcc"),
            put_message(tx, here.ada, [zoe], now=199),
        )
        return other, zoe.id, [one.id for one in sent]

    other, zoe, sent = await store.write(happened)
    into = await store.read(lambda tx: tx.written_into(home, DAY, to=other, limit=9))
    assert [one.id for one in into] == [sent[1], sent[4]]
    newest = await store.read(lambda tx: tx.written_into(home, DAY, to=other, limit=1))
    assert [one.id for one in newest] == [sent[4]]
    counted = await store.read(
        lambda tx: (
            tx.written_count(home, DAY, most=9),
            tx.written_count(home, DAY, most=3),
            tx.written_count(home, DAY, most=9, to=other),
            tx.written_count(home, DAY, most=1, to=other),
            tx.written_count(other, DAY, most=9),
        )
    )
    assert counted == (4, 3, 2, 1, 0)
    part = await store.read(lambda tx: [tx.took_part(home, DAY, newest=newest) for newest in (9, 2, 1)])
    assert part == [sorted({*ids, zoe}), sorted({here.ada.id, here.cyd.id, zoe}), sorted({here.ada.id, zoe})]


async def reservations_of_a_span_are_those_held_in_it(store: MailStore, clock: ManualClock) -> None:
    """Given back before it, or made behind it, one was not."""
    here, now = await an_office(store), clock.now()

    def happened(tx: MailWrites) -> list[int]:
        ids = [
            reservation(tx, here.ada, prefix, now=now + at).id
            for prefix, at in (("a", 0), ("b", 1), ("c", 9))
        ]
        tx.release_reservation(ids[0], now=now + 2, by="Ada", reason="done")
        return ids

    ids = await store.write(happened)

    async def found(begin: int, end: int, *, since: int = 0, limit: int = 9) -> list[int]:
        span = Span(begin=now + begin, end=now + end)
        rows = await store.read(
            lambda tx: tx.reservations_in(here.project.id, span, since=now + since, limit=limit)
        )
        return [one.id for one in rows]

    assert await found(0, 9) == ids[:2]
    assert await found(2, 10) == ids[1:]
    assert await found(0, 10, since=1) == ids[1:]
    assert await found(0, 10, limit=1) == ids[2:]


PROMISES = (
    every_execution_of_a_run_is_an_attempt,
    attempts_of_a_span_are_grouped_but_for_those_to_be_seen,
    messages_of_a_span_are_found_and_counted,
    messages_into_another_project_are_found_and_counted,
    reservations_of_a_span_are_those_held_in_it,
)

"""Promises of a mail store about agents that postroom runs, and what their runs made of messages."""

from dataclasses import replace

from conformance.promises.given import an_office, put_message, refused
from postroom.contracts.errors import StoreError
from postroom.contracts.people import ChatAddress
from postroom.contracts.runs import OnTimeout
from postroom.contracts.waking import AskedQuestion, KeptRunner, MessageRun
from postroom.stores.mail.access import MailWrites
from postroom.stores.mail.store import MailStore
from postroom.testing.clock import ManualClock


async def a_runner_is_kept_replaced_and_dropped(store: MailStore, clock: ManualClock) -> None:
    """One an agent; what is declared later stands, and an agent without one is told apart."""
    here = await an_office(store)
    ada, ben = here.ada.id, here.ben.id
    await store.write(lambda tx: tx.put_runner(ada, "{}", declared_by="file", now=5))
    assert await store.read(lambda tx: (tx.runner(ben), tx.with_runner([ada, ben, 99]))) == (None, {ada: 5})
    await store.write(lambda tx: tx.put_runner(ada, '{"é": 1}', declared_by="operator", now=6))
    kept = KeptRunner(agent_id=ada, runner='{"é": 1}', declared_by="operator", updated_at=6)
    assert await store.read(lambda tx: tx.runner(ada)) == kept
    assert await store.write(lambda tx: (tx.drop_runner(ada, now=7), tx.drop_runner(ada, now=8))) == (
        True,
        False,
    )
    assert await store.read(lambda tx: (tx.runner(ada), tx.with_runner([]))) == (None, {})
    with refused(StoreError):
        await store.write(lambda tx: tx.put_runner(99, "{}", declared_by="file", now=5))


async def runners_are_listed_by_agent(store: MailStore, clock: ManualClock) -> None:
    """A page at a time, those behind the last one seen."""
    here = await an_office(store)
    ids = sorted([here.ada.id, here.ben.id])

    def declare(tx: MailWrites) -> None:
        for agent_id in reversed(ids):
            tx.put_runner(agent_id, "{}", declared_by="file", now=5)

    await store.write(declare)
    listed = await store.read(lambda tx: [tx.runners(limit=1), tx.runners(limit=9, after=ids[0])])
    assert [[one.agent_id for one in page] for page in listed] == [[ids[0]], [ids[1]]]


async def what_a_run_makes_of_a_message_is_kept_by_recipient(store: MailStore, clock: ManualClock) -> None:
    """The newest run's is kept; nobody else's message can be handled."""
    here = await an_office(store)
    sent = await store.write(lambda tx: put_message(tx, here.ada, [here.ben, here.ada], now=5).id)
    first = MessageRun(message_id=sent, agent_id=here.ben.id, run_id="r1", delivered_at=6)
    own = replace(first, agent_id=here.ada.id, failure="née", ended_at=9)
    again = replace(first, run_id="r2", delivered_at=7)
    for one in (first, own, again):
        await store.write(lambda tx, one=one: tx.put_message_run(one))  # type: ignore[misc]
    found = await store.read(lambda tx: tx.message_runs([sent, 99]))
    assert found == {sent: {here.ben.id: again, here.ada.id: own}, 99: {}}
    other = await store.write(lambda tx: put_message(tx, here.ada, [here.ben], now=5).id)
    for stranger in (replace(own, message_id=other), replace(first, message_id=99)):
        with refused(StoreError):
            await store.write(lambda tx, one=stranger: tx.put_message_run(one))  # type: ignore[misc]


async def a_message_that_tells_the_end_of_a_run_is_known(store: MailStore, clock: ManualClock) -> None:
    """The first record stands; what somebody wrote has none."""
    here = await an_office(store)
    told, written = await store.write(
        lambda tx: [put_message(tx, here.ada, [here.ben], now=5).id for _ in range(2)]
    )
    await store.write(lambda tx: tx.note_answer(told, "r1"))
    await store.write(lambda tx: tx.note_answer(told, "r2"))
    assert await store.read(lambda tx: (tx.answering_run(told), tx.answering_run(written))) == ("r1", None)
    assert await store.read(lambda tx: (tx.tells_last(told), tx.tells_last(written))) == (True, False)
    await store.write(lambda tx: tx.note_answer(written, "r1"))
    assert await store.read(lambda tx: (tx.tells_last(told), tx.tells_last(written))) == (False, True)
    with refused(StoreError):
        await store.write(lambda tx: tx.note_answer(99, "r"))


async def what_a_run_at_work_asks_is_known_until_it_ends(store: MailStore, clock: ManualClock) -> None:
    """In the order of asking, each once, and nobody else can ask in its name; begun anew it asked nothing."""
    here = await an_office(store)
    ada, ben = here.ada.id, here.ben.id
    first = AskedQuestion(id="b", text="May I? é")
    second = AskedQuestion(id="a", text="And this?", timeout_ms=60_000, on_timeout=OnTimeout.NO)

    async def asked(run_id: str) -> list[AskedQuestion]:
        return await store.read(lambda tx: tx.questions(run_id))

    assert not await store.write(lambda tx: tx.ask("r", ada, first, 1))
    await store.write(lambda tx: tx.begin_run("r", ada, 1))
    assert not await store.write(lambda tx: tx.ask("r", ben, first, 1))
    for question, at in ((first, 2), (second, 3), (first, 4)):
        assert await store.write(lambda tx, one=question, now=at: tx.ask("r", ada, one, now))  # type: ignore[misc]
    await store.write(lambda tx: tx.begin_run("other", ada, 1))
    assert await asked("r") == [first, second]
    assert await asked("other") == []
    await store.write(lambda tx: tx.end_run("r", now=9))
    assert await asked("r") == []
    await store.write(lambda tx: tx.begin_run("r", ada, 5))
    assert await store.write(lambda tx: tx.ask("r", ada, first, 5))
    await store.write(lambda tx: tx.begin_run("r", ada, 6))
    assert await asked("r") == []


async def who_works_on_a_thread_is_known(store: MailStore, clock: ManualClock) -> None:
    """Whose run at work has a message of it in its hands; nobody else, and not when the run has ended."""
    here = await an_office(store)
    ada, ben = here.ada.id, here.ben.id
    mine, other = await store.write(
        lambda tx: [put_message(tx, here.ada, [here.ben, here.ada], now=5, thread=one) for one in ("t", "u")]
    )

    async def working(thread_id: str, *asked: int) -> set[int]:
        return await store.read(lambda tx: tx.working_on(asked, mine.project_id, thread_id))

    def begun(tx: MailWrites) -> None:
        for agent_id, run_id, message_id in ((ada, "a", other.id), (ben, "b", mine.id)):
            tx.put_message_run(
                MessageRun(message_id=message_id, agent_id=agent_id, run_id=run_id, delivered_at=6)
            )
        tx.begin_run("b", ben, 6)
        tx.begin_run("other", ada, 6)

    assert await working("t", ada, ben) == set()
    await store.write(begun)
    assert await working("t", ada, ben) == {ben}
    assert await working("t", ada) == await working("t") == await working("u", ada, ben) == set()
    assert await store.read(lambda tx: tx.working_on([ben], mine.project_id + 1, "t")) == set()
    await store.write(lambda tx: tx.end_run("b", now=7))
    assert await working("t", ada, ben) == set()


async def runners_and_unread_messages_are_counted(store: MailStore, clock: ManualClock) -> None:
    """A message counts once for each inbox in which it lies unread; a recalled one lies in none."""
    here = await an_office(store)

    async def counted() -> tuple[int, int]:
        counts = await store.read(lambda tx: tx.counts())
        return counts["runners"], counts["unread"]

    assert await counted() == (0, 0)
    await store.write(lambda tx: tx.put_runner(here.ada.id, "{}", declared_by="file", now=5))
    read, recalled = await store.write(
        lambda tx: [put_message(tx, here.ada, [here.ben, here.ada], now=5).id for _ in range(2)]
    )
    assert await counted() == (1, 4)
    await store.write(lambda tx: tx.mark_read(read, here.ben.id, 6))
    await store.write(lambda tx: tx.mark_recalled(recalled, 6))
    assert await counted() == (1, 1)


async def messages_that_have_woken_nobody_are_found(store: MailStore, clock: ManualClock) -> None:
    """For active readers with a runner or a chat; none that is read, recalled, announced or in a run."""
    here = await an_office(store)
    ada, ben, chat = here.ada.id, here.ben.id, ChatAddress(platform="telegram", chat_id="é")
    sent = await store.write(
        lambda tx: [put_message(tx, here.cyd, [here.ada, here.ben], now=5).id for _ in range(3)]
    )

    async def found(*after: int, limit: int = 99) -> list[tuple[int, int]]:
        behind = (after[0], after[1]) if after else (0, 0)
        return await store.read(lambda tx: tx.unwoken(after=behind, limit=limit))

    async def counted() -> list[int]:
        return await store.read(lambda tx: [tx.unwoken_count(agent_id) for agent_id in (ada, ben)])

    assert (await found(), await counted()) == ([], [3, 3])
    await store.write(lambda tx: tx.put_runner(ada, "{}", declared_by="file", now=5))
    await store.write(lambda tx: tx.put_chat_address(ben, chat, now=5))
    every = sorted((message_id, agent_id) for message_id in sent for agent_id in (ada, ben))
    assert (await found(), await found(*every[2], limit=2)) == (every, every[3:5])
    await store.write(lambda tx: tx.mark_read(sent[0], ada, 6))
    await store.write(lambda tx: tx.mark_announced(ben, sent[:1], by="chat", now=6))
    message_run = MessageRun(message_id=sent[1], agent_id=ada, run_id="r", delivered_at=6, ended_at=7)
    await store.write(lambda tx: tx.put_message_run(message_run))
    await store.write(lambda tx: tx.mark_recalled(sent[2], 6))
    assert (await found(), await counted()) == ([(sent[1], ben)], [0, 1])
    await store.write(lambda tx: tx.set_agent_retired(ben, 7, now=7))
    assert (await found(), await counted()) == ([], [0, 0])


PROMISES = (
    messages_that_have_woken_nobody_are_found,
    a_runner_is_kept_replaced_and_dropped,
    runners_are_listed_by_agent,
    what_a_run_makes_of_a_message_is_kept_by_recipient,
    a_message_that_tells_the_end_of_a_run_is_known,
    what_a_run_at_work_asks_is_known_until_it_ends,
    who_works_on_a_thread_is_known,
    runners_and_unread_messages_are_counted,
)

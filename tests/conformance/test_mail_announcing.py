"""Messages to announce to agents, announced messages, and messages in runs."""

from dataclasses import replace

import pytest

from conformance.boxes import Box, on_both
from conformance.promises.given import Office, put_message
from postroom.contracts.errors import StoreError
from postroom.contracts.mail import Received
from postroom.contracts.people import ChatAddress
from postroom.contracts.runs import OnTimeout
from postroom.contracts.waking import AskedQuestion, ClientSession, MessageRun


def three(box: Box, here: Office) -> list[int]:
    return [box.put(here.ada, [here.ben], now=5).id for _ in range(3)]


def left(box: Box, agent_id: int, *, limit: int = 10) -> list[int]:
    return [one.message_id for one in box.unannounced(agent_id, limit=limit)]


def test_more_messages_than_a_statement_has_parameters_are_announced_at_once(box: Box, here: Office) -> None:
    sent = box.change(lambda tx: [put_message(tx, here.ada, [here.ben]).id for _ in range(1_200)])
    assert box.mark_announced(here.ben.id, sent, by="hook", now=5) == 1_200
    assert left(box, here.ben.id, limit=2_000) == []


@on_both
def test_a_session_acts_as_one_agent(box: Box, here: Office) -> None:
    ada, ben, cyd = here.ada.id, here.ben.id, here.cyd.id
    for client, agent_id, now in (("claude", ada, 5), ("codex", cyd, 5), ("claude", ben, 6)):
        box.bind_client_session(client, "s", agent_id, now)
    first = ClientSession(client="claude", session_id="s", agent_id=ben, bound_at=6)
    other = ClientSession(client="codex", session_id="s", agent_id=cyd, bound_at=5)
    assert (box.client_session("claude", "s"), box.client_session("codex", "s")) == (first, other)
    assert box.client_session("claude", "t") is None
    asked = [ada, ben, cyd, 99]
    assert [one for one, known in box.reach(ada, asked).items() if known.has_session] == [ben, cyd]
    assert box.sessions_seen(asked) == {ben: 6, cyd: 5}
    assert box.reach(ada, []) == box.sessions_seen([]) == {}
    for _ in range(2):
        box.end_client_session("claude", "s")
    assert box.client_session("claude", "s") is None
    with pytest.raises(StoreError):
        box.bind_client_session("claude", "s", 99, 5)


def test_old_sessions_are_forgotten_oldest_first(box: Box, here: Office) -> None:
    for number in range(4):
        box.bind_client_session("claude", f"s{number}", here.ada.id, 10 + number)
    assert [box.purge_client_sessions(12, limit=limit) for limit in (1, 9, 9)] == [1, 1, 0]
    assert [box.client_session("claude", one) is None for one in ("s1", "s2")] == [True, False]


@on_both
def test_what_a_run_makes_of_a_message_is_kept_by_recipient(box: Box, here: Office) -> None:
    sent, other = box.put(here.ada, [here.ben, here.ada]).id, box.put(here.ada, [here.ben]).id
    first = MessageRun(message_id=sent, agent_id=here.ben.id, run_id="r1", delivered_at=6)
    own = replace(first, agent_id=here.ada.id, failure="née", ended_at=9)
    again = replace(first, run_id="r2", delivered_at=7)
    for one in (first, own, again):
        box.put_message_run(one)
    assert box.message_runs([sent, 99]) == {sent: {here.ben.id: again, here.ada.id: own}, 99: {}}
    for stranger in (replace(own, message_id=other), replace(first, message_id=99)):
        with pytest.raises(StoreError):
            box.put_message_run(stranger)


@on_both
def test_a_message_that_tells_the_end_of_a_run_is_known(box: Box, here: Office) -> None:
    told, written, _ = three(box, here)
    box.note_answer(told, "r1")
    box.note_answer(told, "r2")
    assert (box.answering_run(told), box.answering_run(written)) == ("r1", None)
    assert box.answers_among("r1", [told, written]) == {told}
    assert box.answers_among("r1", []) == box.answers_among("r2", [told]) == set()
    assert (box.newest_report("r1"), box.newest_report("r2")) == (told, None)
    box.note_answer(written, "r1")
    assert (box.newest_report("r1"), box.newest_report("r2")) == (written, None)
    with pytest.raises(StoreError):
        box.note_answer(99, "r")


def test_what_a_run_at_work_asks_is_known_until_it_ends(box: Box, here: Office) -> None:
    ada = here.ada.id
    first = AskedQuestion(id="b", text="May I? é", asked_at=2)
    second = AskedQuestion(id="a", text="And this?", timeout_ms=60_000, on_timeout=OnTimeout.NO, asked_at=3)
    assert not box.ask("r", ada, first, 1)
    box.begin_run("r", ada, 1)
    assert not box.ask("r", here.ben.id, first, 1)
    for question, at in ((first, 2), (second, 3), (first, 4)):
        assert box.ask("r", ada, question, at)
    box.begin_run("other", ada, 1)
    assert (box.questions("r"), box.questions("other")) == ([first, second], [])
    assert box.end_run("r", now=9) == (ada, False, [first, second])
    assert box.questions("r") == []
    assert box.end_run("r", now=9) is None
    assert box.begin_run("r", ada, 5) == ()
    assert box.ask("r", ada, first, 5)
    assert box.begin_run("r", ada, 6) == [first]
    assert box.questions("r") == []


def test_who_works_on_a_thread_is_known(box: Box, here: Office) -> None:
    ada, ben = here.ada.id, here.ben.id
    mine, other = (box.put(here.ada, [here.ben, here.ada], thread=one) for one in ("t", "u"))

    def working(thread_id: str, *asked: int, project_id: int = mine.project_id) -> set[int]:
        return box.working_on(asked, project_id, thread_id)

    assert working("t", ada, ben) == set()
    for agent_id, run_id, message_id in ((ada, "a", other.id), (ben, "b", mine.id)):
        run = MessageRun(message_id=message_id, agent_id=agent_id, run_id=run_id, delivered_at=6)
        box.put_message_run(run)
    box.begin_run("b", ben, 6)
    box.begin_run("other", ada, 6)
    assert working("t", ada, ben) == {ben}
    assert working("t", ada) == working("t") == working("u", ada, ben) == set()
    assert working("t", ben, project_id=mine.project_id + 1) == set()
    box.end_run("b", now=7)
    assert working("t", ada, ben) == set()


def test_messages_that_have_woken_nobody_are_found(box: Box, here: Office) -> None:
    ada, ben = here.ada.id, here.ben.id
    sent = [box.put(here.cyd, [here.ada, here.ben], now=5).id for _ in range(3)]

    def found(after: tuple[int, int] = (0, 0), limit: int = 99) -> list[tuple[int, int]]:
        return box.unwoken(after=after, limit=limit)

    def counted() -> list[int]:
        return [box.unwoken_count(agent_id) for agent_id in (ada, ben)]

    assert (found(), counted()) == ([], [3, 3])
    box.put_runner(ada, "{}", declared_by="file", now=5)
    box.put_chat_address(ben, ChatAddress(platform="telegram", chat_id="é"), now=5)
    every = sorted((message_id, agent_id) for message_id in sent for agent_id in (ada, ben))
    assert (found(), found(every[2], 2)) == (every, every[3:5])
    box.mark_read(sent[0], ada, 6)
    box.mark_announced(ben, sent[:1], by="chat", now=6)
    box.put_message_run(MessageRun(message_id=sent[1], agent_id=ada, run_id="r", delivered_at=6, ended_at=7))
    box.mark_recalled(sent[2], 6)
    assert (found(), counted()) == ([(sent[1], ben)], [0, 1])
    box.set_agent_retired(ben, 7, now=7)
    assert (found(), counted()) == ([], [0, 0])


@on_both
def test_an_agent_is_found_with_its_project_and_its_runner_by_path_slug_and_alias(
    box: Box, here: Office
) -> None:
    home = here.project
    box.add_project_alias(home.id, "/elsewhere")
    box.put_runner(here.ada.id, '{"é": 1}', declared_by="file", now=5)
    for key in (home.human_key, home.slug, "/elsewhere"):
        found = box.agent_addressed(key, "ADA")
        assert (found.project, found.agent, found.runner) == (home, here.ada, '{"é": 1}')
    assert box.agent_addressed(home.slug, "Ben").runner is None
    assert [box.agent_addressed(*asked) for asked in ((home.slug, "Dan"), ("other", "Ada"))] == [None, None]


@on_both
def test_an_agents_deliveries_tell_their_run_and_whose_answer_they_are(box: Box, here: Office) -> None:
    ben, told = here.ben.id, box.put(here.ada, [here.ben], kind="bcc", thread="t", now=5)
    answer, other = box.put(here.ada, [here.ben]).id, box.put(here.ada, [here.cyd]).id
    box.note_answer(answer, "r0")
    box.put_message_run(MessageRun(message_id=told.id, agent_id=ben, run_id="r1", delivered_at=6, ended_at=7))
    box.mark_read(told.id, ben, 8)
    box.mark_recalled(answer, 9)
    found = box.received(ben, [told.id, answer, other, 99])
    assert found == {
        told.id: Received(
            message_id=told.id,
            project_id=here.project.id,
            thread_id="t",
            kind="bcc",
            read_at=8,
            recalled_at=None,
            run_id="r1",
            delivered_at=6,
            ended_at=7,
            answer_of=None,
        ),
        answer: Received(
            message_id=answer,
            project_id=here.project.id,
            thread_id=f"msg-{answer}",
            kind="to",
            read_at=None,
            recalled_at=9,
            run_id=None,
            delivered_at=None,
            ended_at=None,
            answer_of="r0",
        ),
    }

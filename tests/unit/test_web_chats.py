"""The page of chats: their open questions, answered by a person, and their dead letters, replayed or discarded."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from dispatch_room import done
from postroom.contracts.activation import RunActivation
from postroom.contracts.chat import CHAT_THREAD, InboundKey, InboundMessage
from postroom.contracts.errors import IllegalTransition, StaleDecision, Unauthorized
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
from postroom.contracts.messages import Message
from postroom.contracts.records import replace
from postroom.contracts.runs import RunWaitingState, RunWaitingTicket, TerminationReason, WaitingReason
from postroom.gateway.replies import ChatEffects
from postroom.stores.chats.stores import ChatStores
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from work_room import SLUG, TOKEN, WorkRoom, hidden, opened, place, post

THREAD = f"{CHAT_THREAD}telegram/bot/s1"


class Locked(RunDispatchExecutor):
    """A fake for tests: has no key for its model at first."""

    has_key = False

    async def run(self, activation: RunActivation, sink: Any) -> AgentRunResult:
        if not self.has_key:
            raise Unauthorized("the key is <not> known")
        return done(activation, "there are 12 bees")


@pytest.fixture
def locked() -> Locked:
    return Locked()


@pytest_asyncio.fixture
async def room(clock: ManualClock, locked: Locked) -> AsyncIterator[WorkRoom]:
    async with opened(clock, "Ada") as made:
        made.runs.serve(CHAT_THREAD, locked, ChatEffects())
        yield made


class Asking(RunDispatchExecutor):
    """A fake for tests: asks, and answers with the decision."""

    async def run(self, activation: RunActivation, sink: Any) -> AgentRunResult:
        if activation.decisions:
            [(_, told)] = activation.decisions
            return done(activation, f"approved: {told.approved}, because {told.reason}")
        ticket = RunWaitingTicket(ticket_id="t1", tool_call_id="c1", tool_name="delete <all>", arguments={})
        waiting = RunWaitingState(reason=WaitingReason.TOOL_PERMISSION, tickets=(ticket,))
        return AgentRunResult(
            run_id=activation.run_id or "", termination=TerminationReason.suspended(), waiting=waiting
        )


async def test_a_question_of_a_chat_is_listed_for_people_and_answered_once_on_the_page(
    clock: ManualClock,
) -> None:
    held = SqliteStore.in_memory(clock)
    room = WorkRoom(held, held.runs, clock)
    room.runs.serve(CHAT_THREAD, Asking(), ChatEffects())
    await room.people("Ada")
    source = {"platform": "telegram", "chat_id": "c7", "user_name": "Ann"}
    draft = InboundMessage(
        key=InboundKey(platform="telegram", account="bot", chat_id="c7", message_id="m1"),
        session_key="c7",
        body={"source": source},
    )
    kept = await ChatStores(room.stores.store, is_shared=False).intake_log.receive(draft)
    message = replace(Message.user("tidy up"), id=kept.message.thread_message_id)
    sent = await room.runs.mailbox.submit_background(RunActivation.new(THREAD, [message]))
    await room.turn()
    [asked] = await room.questions.questions()
    told = {name: asked[name] for name in ("agent", "project", "chat", "who", "run_id")}
    chat = {"agent": "default", "project": "", "chat": "telegram/c7", "who": "Ann on telegram"}
    assert told == {**chat, "run_id": sent.run_id}
    assert (await room.questions.show(str(asked["number"])))["chat"] == "telegram/c7"
    browser = room.browser()
    assert f'action="/chats/{sent.run_id}"' in (await browser.get("/")).text
    here = (await browser.get(f"/p/{SLUG}/questions")).text
    assert 'Chats have open questions, too: <a href="/chats">' in here
    page = (await browser.get("/chats")).text
    for shown in ("default", "telegram/c7", "Ann on telegram", "delete &lt;all&gt;", asked["number"]):
        assert str(shown) in page
    fields = [
        ("form_token", hidden(page, "form_token")),
        *(("do", "answer"), ("number", str(asked["number"])), ("why", "it is late")),
    ]
    address = f"/chats/{sent.run_id}"
    nameless = await post(browser, address, *fields, ("answer", "no"))
    assert (nameless.status_code, len(await room.questions.questions())) == (400, 1)
    answer = await post(browser, address, *fields, ("answer", "no"), ("by", "Bea"))
    told = answer.headers["location"]
    assert (answer.status_code, told.partition("&")[0]) == (303, "/chats?done=no")
    assert "Denied. The chat" in (await browser.get(told)).text
    late = await post(browser, address, *fields, ("answer", "yes"), ("by", "Cy"))
    assert late.status_code == 409
    assert "<bdi>Bea</bdi></b> answered" in late.text
    assert "This agent has no other open question." in late.text
    with pytest.raises(StaleDecision, match="Bea on the pages answered no"):
        await room.questions.answer(str(asked["number"]), "yes", by="Cy")
    record = await room.questions.show(str(asked["number"]))
    assert (record["answered_by"], record["where"]) == ("Bea", "on the pages")
    from_home = await post(browser, address, *fields, ("back", "home"), ("answer", "yes"), ("by", "Cy"))
    assert from_home.status_code == 409
    assert "<bdi>Bea</bdi></b> answered" in from_home.text
    await room.turn()
    replies = await room.stores.store.read(lambda tx: tx.outbox.open("chat", limit=9))
    said = [one.payload["text"] for one in replies]
    assert "approved: False, because it is late" in said
    assert any(text.endswith("Denied by Bea on the pages.") for text in said)
    assert "No open questions" in (await browser.get("/chats")).text
    assert "Everything is settled: no open question" in (await browser.get("/")).text
    await room.close()
    held.close()


@pytest.mark.parametrize(
    ("named", "who"), [({}, "an operator"), ({"by": "human:kim"}, "kim")], ids=["", "kim"]
)
async def test_the_record_of_a_chats_question_says_who_cancelled_its_run(
    room: WorkRoom, named: dict[str, str], who: str
) -> None:
    room.runs.serve(CHAT_THREAD, Asking(), ChatEffects())
    sent = await room.runs.mailbox.submit_background(RunActivation.new(THREAD, [Message.user("tidy up")]))
    await room.turn()
    [asked] = await room.questions.questions()
    async with room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}") as operator:
        done = await operator.post("/admin/runs/cancel", json={"run": sent.run_id, **named})
        shown = await operator.get("/admin/questions/one", params={"number": asked["number"]})
    assert done.status_code == 200, done.text
    record = {name: shown.json()[name] for name in ("state", "answered_by", "answer", "chat")}
    assert record == {
        "state": "closed",
        "answered_by": "nobody",
        "answer": f"the run was cancelled by {who}",
        "chat": "telegram/bot",
    }
    with pytest.raises(StaleDecision, match=f"the run was cancelled by {who}"):
        await room.questions.answer(str(asked["number"]), "yes", by="Cy")


async def given_up(room: WorkRoom) -> str:
    """Have a message of a chat fail; return the id of its run."""
    message = Message.user("count the <bees>")
    sent = await room.runs.mailbox.submit_background(RunActivation.new(THREAD, [message]))
    await room.turn()
    return sent.run_id


async def test_what_was_given_up_in_chats_is_shown_and_found_from_the_first_page(room: WorkRoom) -> None:
    browser = room.browser()
    assert "/chats" not in (await browser.get("/")).text
    run_id = await given_up(room)
    assert f'href="/chats/{run_id}"' in (await browser.get("/")).text
    page = (await browser.get("/chats")).text
    for shown in (run_id, "telegram/bot", "count the &lt;bees&gt;", "the key is &lt;not&gt; known"):
        assert shown in page


async def test_a_run_of_a_chat_is_tried_again_on_the_page_and_its_answer_goes_to_its_chat(
    room: WorkRoom, locked: Locked
) -> None:
    run_id, browser = await given_up(room), room.browser()
    page, locked.has_key = (await browser.get("/chats")).text, True
    assert f'action="/chats/{run_id}"' in page
    fields = ("form_token", hidden(page, "form_token")), ("do", "replay")
    answer = await post(browser, f"/chats/{run_id}", *fields)
    assert (answer.status_code, place(answer)) == (303, "/chats?done=replay")
    await room.turn()
    replies = await room.stores.store.read(lambda tx: tx.outbox.open("chat", limit=9))
    assert replies[-1].payload["text"] == "there are 12 bees"
    page = (await browser.get(answer.headers["location"])).text
    assert "The run starts again" in page
    assert "No dead letters" in page


async def test_a_run_of_a_chat_is_left_once_and_a_run_of_an_agent_is_none_of_this_page(
    room: WorkRoom,
) -> None:
    run_id, browser = await given_up(room), room.browser()
    token = ("form_token", hidden((await browser.get(f"/chats/{run_id}")).text, "form_token"))
    address = f"/chats/{run_id}"
    assert (await post(browser, address, token, ("do", "burn"))).status_code == 400
    assert (await post(browser, address, ("do", "discard"))).status_code == 403
    left = await post(browser, address, token, ("do", "discard"))
    assert place(left) == "/chats?done=discard"
    assert await room.look(room.operator.dead_in_chats) == []
    assert (await post(browser, address, token, ("do", "discard"))).status_code == 404
    await room.people("Fay", runners=("Fay",))
    await room.send("Ada", "Fay")
    await room.turn()
    [dead] = await room.operator.dead()
    other = await post(browser, f"/chats/{dead['run_id']}", token, ("do", "discard"))
    assert other.status_code == 404
    stranger = await post(room.browser(logged_in=False), address, token, ("do", "replay"))
    assert stranger.headers["location"].startswith("/login")


async def test_each_run_names_its_chat_and_one_whose_caller_waits_no_more_is_not_tried_again(
    room: WorkRoom,
) -> None:
    browser, sources = room.browser(), {"telegram": "c7", "api_server": "s1"}
    for platform, chat in sources.items():
        key = InboundKey(platform=platform, account="bot", chat_id=chat, message_id="m1")
        source = {"platform": platform, "chat_id": chat, "user_name": "Ada"}
        draft = InboundMessage(key=key, session_key=platform, body={"source": source})
        kept = await ChatStores(room.stores.store, is_shared=False).intake_log.receive(draft)
        message = replace(Message.user("count"), id=kept.message.thread_message_id)
        thread = f"{CHAT_THREAD}{platform}/bot/{chat}"
        await room.runs.mailbox.submit_background(RunActivation.new(thread, [message]))
    await room.turn()
    page = (await browser.get("/chats")).text
    for shown in ("telegram/c7", "api_server/s1", "Ada on telegram", "has already received the error"):
        assert shown in page
    assert (page.count('value="replay"'), page.count('value="discard"')) == (1, 2)
    [over_api] = [
        one.work for one in await room.look(room.operator.dead_in_chats) if one.chat == "api_server/s1"
    ]
    with pytest.raises(IllegalTransition, match="has already received the error"):
        await room.operator.replay(over_api.run_id)
    assert (await room.operator.discard(over_api.run_id)).run_id == over_api.run_id

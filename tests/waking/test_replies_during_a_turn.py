"""A reply by mail to a question whose run works with another answer is the answer, or its sender learns why not."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from machine import PATIENCE
from postroom.contracts.errors import AlreadyRead, Overloaded, QueueFull, StaleDecision, Unauthorized
from postroom.contracts.people import ChatAddress
from postroom.mail.people import StoredChatDelivery
from postroom.services.people import Draft
from postroom.testing import ManualClock
from waking_room import PROJECT, both_engines
from work_room import SLUG, TOKEN, WorkRoom, hidden, post

A, B = {"question": "A?"}, {"question": "B?", "action": "drop b"}

MODEL = json.dumps({"kind": "model", "base_url": "http://127.0.0.1/v1", "model": "m"})


class Asking(WorkRoom):
    """A room in which Bo asks questions in his first turn, and works in his second until the test lets him go on."""

    fails_with: Exception | None = None
    """The error with which the second turn ends."""

    def ask(self, *questions: dict[str, Any]) -> None:
        self.turns = list[list[str]]()
        self.working, self.go_on = asyncio.Event(), asyncio.Event()
        self.agents.told.clear()

        async def act(activation: Any) -> None:
            self.turns.append([message.text() for message in activation.messages])
            asked = {"project_key": PROJECT, "agent_name": "Bo", "run_id": activation.run_id}
            if len(self.turns) == 1:
                for question in questions:
                    await self.mail.call("ask_person", {**asked, **question})
            elif len(self.turns) == 2:
                self.working.set()
                await asyncio.wait_for(self.go_on.wait(), PATIENCE)
                if self.fails_with is not None:
                    raise self.fails_with

        self.agents.act = act

    @asynccontextmanager
    async def at_work(
        self, *questions: dict[str, Any], started: Awaitable[Any] | None = None
    ) -> AsyncIterator[dict[str, str]]:
        """Let Bo work with the answer to the first question; then let him end the turn and everything after it."""
        self.ask(*questions)
        await (started or self.send("Ada", "Bo"))
        await self.turn()
        numbers = {one["question"]: one["number"] for one in await self.questions.questions()}
        self.report = (await self.messages())[-1]
        self.clock.advance(timedelta(seconds=1))
        await self.questions.answer(numbers["A?"], "yes", by="ana")
        turn = asyncio.create_task(self.turn())
        await asyncio.wait_for(self.working.wait(), PATIENCE)
        yield numbers
        self.go_on.set()
        await turn
        await self.turn()

    async def inbox(self, name: str) -> list[dict[str, Any]]:
        asked = {"project_key": PROJECT, "agent_name": name, "after": 0}
        return await self.mail.call("fetch_inbox", asked)

    async def reply(self, text: str, *, by: str = "Ada", **more: Any) -> tuple[int, str]:
        """Reply to the message that asks; return the number of the reply and what its sender is told."""
        asked = {"project_key": PROJECT, "sender_name": by, "message_id": self.report.id}
        sent = await self.mail.call("reply_message", {**asked, "body_md": text, **more})
        [delivery] = sent["deliveries"]
        return delivery["payload"]["id"], delivery["seen"][0]

    async def shown(self, number: str) -> dict[str, Any]:
        async with self.browser(logged_in=False, Authorization=f"Bearer {TOKEN}") as operator:
            found = await operator.get("/admin/questions/one", params={"number": number})
        assert found.status_code == 200, found.text
        return found.json()

    async def status(self, message: int, *, by: str = "Ada") -> tuple[str, str | None]:
        asked = {"project_key": PROJECT, "agent_name": by, "message_id": message}
        [one] = (await self.mail.call("delivery_status", asked))["recipients"]
        return one["state"], one["waits"]


@pytest_asyncio.fixture
async def room(stores, clock: ManualClock) -> AsyncIterator[Asking]:
    made = Asking(*stores, clock)
    await made.people("Ada", "Ben", "Bo", runners=("Bo",))
    yield made
    await made.close()


def given(turns: Sequence[Sequence[str]], question: str) -> list[str]:
    """Return the answers to a question that the agent got, in order."""
    begins = f"You asked a person: {question}\n"
    return [text for turn in turns for text in turn if text.startswith(begins)]


@both_engines
async def test_a_reply_during_a_turn_is_the_answer_and_the_run_reads_it_once_after_the_turn(room):
    async with room.at_work(A, B) as numbers:
        number, seen = await room.reply("no")
        assert seen == f"wake by runner: this message answers question {numbers['B?']}"
        shown = await room.shown(numbers["B?"])
        assert (shown["state"], shown["approved"], shown["answered_by"]) == ("answered", False, "Ada")
        assert shown["where"] == "by mail"
        assert await room.questions.questions() == []
        assert await room.status(number) == ("announced", None)
        with pytest.raises(StaleDecision, match="Ada"):
            await room.questions.answer(numbers["B?"], "yes", by="ana")
    assert [len(turn) for turn in room.turns] == [1, 1, 3]
    earlier, mail, answer = room.turns[2]
    assert earlier.startswith("Earlier in this run: You asked a person: A?\nThe answer is yes.")
    assert f"Message: {number}\n" in mail
    assert "The answer is no." in answer
    assert await room.status(number) == ("read", None)
    assert (await room.shown(numbers["B?"]))["answered_by"] == "Ada"
    asked, *later = [message["body_md"] for message in await room.inbox("Ada")]
    assert "- A?" in asked
    assert later == ["Bo did it", "Bo did it"]  # each turn's text, and no question that has an answer


WAITS = r"waits: Bo has an open question since [^;\s]+"
OPEN = WAITS + "; this reply does not answer it: "


@both_engines
async def test_a_reply_during_a_turn_that_is_no_answer_is_told_why_and_leaves_the_question_open(room):
    async with room.at_work(A, B) as numbers:
        number, seen = await room.reply("no, never drop b")
        why = (
            f'question {numbers["B?"]} (B?) is still open: "no, never drop b" is neither yes nor no; '
            "it accepts yes or no, from everybody who may answer questions"
        )
        assert re.fullmatch(OPEN + re.escape(why), seen)
        assert await room.status(number) == ("announced", seen.removeprefix("waits: "))
        assert (await room.shown(numbers["B?"]))["state"] == "open"
        _, seen = await room.reply("no")
        assert seen == f"wake by runner: this message answers question {numbers['B?']}"
        assert (await room.shown(numbers["B?"]))["answered_by"] == "Ada"
        _, seen = await room.reply("yes")
        told = f"question {numbers['B?']} was already answered: no, by Ada by mail"
        assert seen.startswith("wake by runner: this message answers no question, because ")
        assert seen.endswith(told)
    assert len(given(room.turns, "B?")) == 1


@both_engines
@pytest.mark.parametrize("is_same_thread", [True, False], ids=["in the same thread", "in another thread"])
async def test_a_message_during_a_turn_that_is_no_reply_is_told_that_it_waits(room, is_same_thread):
    async with room.at_work(A, B) as numbers:
        asked = {"project_key": PROJECT, "sender_name": "Ada", "to": ["Bo"], "subject": "S", "body_md": "no"}
        thread = {"thread_id": room.report.thread_id} if is_same_thread else {}
        [delivery] = (await room.mail.call("send_message", {**asked, **thread}))["deliveries"]
        [seen] = delivery["seen"]
        only = f"; this message does not answer it: only a reply to message {room.report.id} does"
        assert re.fullmatch(WAITS + (re.escape(only) if is_same_thread else ""), seen)
        assert await room.status(delivery["payload"]["id"]) == ("announced", seen.removeprefix("waits: "))
        assert (await room.shown(numbers["B?"]))["state"] == "open"
    assert given(room.turns, "B?") == []


@both_engines
async def test_a_reply_by_somebody_who_may_not_answer_is_told_who_may(room):
    only_kim = {**B, "to": ["human:kim"]}
    await room.people_named.add("kim", None)
    async with room.at_work(A, only_kim) as numbers:
        _, seen = await room.reply("no")
        assert re.match(OPEN, seen)
        assert f"Ada may not answer question {numbers['B?']} (B?)" in seen
        assert seen.endswith("it accepts yes or no, from kim")
        _, seen = await room.reply("no", by="Ben")
        assert "only people, and those whom it was sent to, may answer it" in seen
        assert (await room.shown(numbers["B?"]))["state"] == "open"
    assert given(room.turns, "B?") == []


@both_engines
async def test_a_reply_during_a_turn_answers_every_question_that_its_message_left_open(room):
    async with room.at_work(A, B, {"question": "C?"}) as numbers:
        reply, seen = await room.reply("no")
        both = f"{numbers['B?']}, {numbers['C?']}"
        assert seen == f"wake by runner: this message answers questions {both}"
        for question in ("B?", "C?"):
            shown = await room.shown(numbers[question])
            assert (shown["approved"], shown["answered_by"]) == (False, "Ada")
        recalled = {"project_key": PROJECT, "sender_name": "Ada", "message_id": reply}
        with pytest.raises(AlreadyRead, match=f"is the answer to questions {both}, and"):
            await room.mail.call("recall_message", recalled)
    assert [len(given(room.turns, question)) for question in ("A?", "B?", "C?")] == [1, 1, 1]


@both_engines
async def test_a_reply_between_turns_tells_its_sender_which_questions_it_answers(room):
    room.ask(A, B)
    await room.send("Ada", "Bo")
    await room.turn()
    numbers = {one["question"]: one["number"] for one in await room.questions.questions()}
    room.report = (await room.messages())[-1]
    _, seen = await room.reply("no")
    assert seen == f"wake by runner: this message answers questions {numbers['A?']}, {numbers['B?']}"
    room.go_on.set()
    await room.turn()


async def test_the_page_after_a_reply_says_which_question_it_answers(room):
    room.ask(A)
    await room.send("Ada", "Bo")
    await room.turn()
    [question] = await room.questions.questions()
    address = f"/p/{SLUG}/t/{(await room.messages())[-1].thread_id}"
    await room.people_named.add("Kim", None)
    async with room.browser() as browser:
        browser.cookies.set("postroom_name", "Kim")
        page = (await browser.get(address)).text
        form = page[page.index('id="reply"') :]
        fields = [(name, hidden(form, name)) for name in ("form_token", "key", "reply", "thread")]
        sent = await post(browser, f"/p/{SLUG}/write", *fields, ("name", "Kim"), ("body", "yes"))
        assert (
            f"this message answers question {question['number']}"
            in (await browser.get(sent.headers["location"])).text
        )
    room.go_on.set()
    await room.turn()


@both_engines
async def test_a_turn_that_is_tried_again_gets_the_answer_of_a_reply_once(room, clock):
    async with room.at_work(A, B) as numbers:
        room.fails_with = Overloaded("come back later")
        number, _ = await room.reply("no")
    clock.advance(timedelta(minutes=1))
    await room.runs.mailbox.recover()
    await room.turn()
    assert len(given(room.turns[2:], "B?")) == 1
    assert (await room.shown(numbers["B?"]))["answered_by"] == "Ada"
    assert await room.status(number) == ("read", None)


@both_engines
async def test_a_reply_to_a_turn_that_fails_permits_nothing_in_the_run_that_reads_it(room):
    async with room.at_work(A, B) as numbers:
        room.fails_with = Unauthorized("the key is not known")
        await room.reply("yes")
    [mail] = room.turns[2]
    assert "It is the answer for the run that asked." in mail
    assert "For every other run, a yes in it permits nothing." in mail
    shown = await room.shown(numbers["B?"])
    assert shown["state"] == "closed"
    assert shown["answer"] == "the run failed before the agent got the answer of Ada by mail: yes"


async def test_a_reply_to_an_agent_that_reads_during_its_turn_is_told_why_it_is_no_answer(room):
    await room.mail.set_runner(PROJECT, "Bo", MODEL)
    async with room.at_work(A, B) as numbers:
        _, seen = await room.reply("never")
        assert re.match(OPEN.replace("waits", "live"), seen)
        assert seen.endswith("it accepts yes or no, from everybody who may answer questions")
        await room.reply("no")
        assert (await room.shown(numbers["B?"]))["answered_by"] == "Ada"
    assert len(given(room.turns, "B?")) == 1


async def test_a_question_for_a_file_is_answered_by_a_reply_with_a_file_during_a_turn(room):
    async with room.at_work(A, {"question": "B?", "file": True}) as numbers:
        async with room.browser() as browser:
            page = (await browser.get(f"/p/{SLUG}/questions")).text
        assert f'href="/p/{SLUG}/write?reply={room.report.id}">Reply with a file</a>' in page
        _, seen = await room.reply("here")
        assert re.match(OPEN, seen)
        file = {"name": "plan.txt", "content_base64": "cGxhbg=="}
        _, seen = await room.reply("here", attachments=[file])
        assert seen == f"wake by runner: this message answers question {numbers['B?']}"
        assert (await room.shown(numbers["B?"]))["answered_by"] == "Ada"
    [answer] = given(room.turns, "B?")
    assert "plan.txt" in answer


async def test_a_reply_during_a_turn_is_an_answer_even_if_the_queue_of_the_agent_is_full(stores, clock):
    room = Asking(*stores, clock, max_pending=1)
    await room.people("Ada", "Bo", runners=("Bo",))
    async with room.at_work(A, B) as numbers:
        await room.send("Ada", "Bo", subject="second")
        with pytest.raises(QueueFull):
            await room.send("Ada", "Bo", subject="third")
        await room.reply("no")
        assert (await room.shown(numbers["B?"]))["answered_by"] == "Ada"
    assert len(given(room.turns, "B?")) == 1
    await room.close()


async def test_a_person_who_replies_from_a_chat_during_a_turn_answers_or_is_told_why_not(room):
    chats, boxes = [ChatAddress(platform="telegram", chat_id="77")], StoredChatDelivery(room.mail)
    await room.people_named.add("kim", chats[0].name)

    async def reply(text: str) -> str:
        return await boxes.reply(chats, room.report.id, text, key=text)

    draft = Draft(name="kim", to=("Bo",), subject="Work", body="please", key="first")
    started = room.services.messages.send(SLUG, draft)
    async with room.at_work(A, B, started=started) as numbers:
        told = await reply("never")
        assert re.match(
            r"Bo@projects-shop\. Bo has an open question since \S+; this reply does not answer", told
        )
        assert told.endswith("it accepts yes or no, from everybody who may answer questions")
        assert await reply("no") == f"Bo@projects-shop. This message answers question {numbers['B?']}"
        assert (await room.shown(numbers["B?"]))["answered_by"] == "kim"
        told = await reply("yes")
        assert told.startswith("Bo@projects-shop. This message answers no question, because question ")
        assert told.endswith(f"question {numbers['B?']} was already answered: no, by kim by mail")
    assert len(given(room.turns, "B?")) == 1

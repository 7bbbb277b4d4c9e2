"""Questions of every kind: each surface takes the same answers, from the same people, and refuses the same others."""

import base64
import json
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from markdown_it import MarkdownIt

from dispatch_room import done
from postroom.contracts.errors import InvalidArgument, NotPermitted, StaleDecision
from postroom.contracts.questions import asked_for
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunStatus
from postroom.gateway.questions import Questions, listed_question
from postroom.gateway.replies import Question, card_of, closed_card, question_of
from postroom.gateway.session import Platform, SessionSource
from postroom.mail.context import Caller, token_hash
from postroom.mcp_server.windows import elicitation
from postroom.services.questions import QuestionTimeouts
from postroom.testing import ManualClock
from waking_room import PROJECT
from work_room import SLUG, TOKEN, WorkRoom, hidden, number, post

POSTROOM = Caller(postroom=True, operator=True)
QUESTIONS = f"/p/{SLUG}/questions"
PRICES = {
    "type": "object",
    "properties": {
        "amount": {"type": "number", "minimum": 0, "maximum": 100},
        "currency": {"type": "string", "enum": ["EUR", "USD"]},
        "note": {"type": "string"},
        "again": {"type": "boolean"},
    },
    "required": ["amount", "currency"],
}
KINDS: dict[str, dict[str, Any]] = {
    "yes_no": {"action": "DROP TABLE payments_old"},
    "yes_no_or_words": {},
    "choice": {"choices": ["EUR", "USD"]},
    "text": {"text": True},
    "form": {"form": PRICES},
}
GOOD: dict[str, tuple[str, dict[str, Any], str]] = {
    "yes_no": ("yes", {"approved": True, "digest": "a0485b0a3685bae8"}, "The answer is yes."),
    "yes_no_or_words": ("No, EUR please.", {"text": "No, EUR please."}, "They answered: No, EUR please."),
    "choice": ("usd", {"choice": "USD"}, "They answered: USD"),
    "text": ("Name it Ben.", {"text": "Name it Ben."}, "They answered: Name it Ben."),
    "form": (
        "amount = 5\ncurrency = EUR",
        {"values": {"amount": 5, "currency": "EUR"}},
        'They answered: {"amount": 5, "currency": "EUR"}',
    ),
}
BAD = {
    "yes_no": [
        *(
            "perhaps",
            "Yes, but only after the backup",
            "EUR",
            "",
            "Yes?",
            "yes...",
            "Yes, please do not",
            "ok",
        ),
        *("Ja", "oui", "sí", "да", "はい"),
        *("no, please", "Yes. Not before the backup", "yes no", "not yes", "Yes!!!!", "Yes, no"),
    ],
    "yes_no_or_words": ["", "\u200b"],
    "choice": ["GBP", "yes", "3", ""],
    "text": ["   ", "\u200b \u2060"],
    "form": [
        "amount = 5",
        "amount = 500; currency = EUR",
        "amount = five; currency = EUR",
        "colour = red",
        "{",
    ],
}


@pytest_asyncio.fixture
async def room(stores, clock: ManualClock) -> AsyncIterator[WorkRoom]:
    made = WorkRoom(*stores, clock)
    await made.people("Ada", "Bo", "Ash", runners=("Bo", "Ash"))
    for name in ("ana", "ben"):
        await made.people_named.add(name, None)
    yield made
    await made.close()


async def asked(room: WorkRoom, **asks: Any):
    """Make Ash ask such a question because of a message from Ada; return the waiting run and its question."""
    room.agents.asks = asks
    await room.send("Ada", "Ash")
    await room.turn()
    return await waiting(room)


async def waiting(room: WorkRoom):
    [run] = await room.stores.threads.list_runs(RunQuery(statuses=(RunStatus.WAITING,)))
    [ticket] = run.open_tickets
    return run, question_of(run, ticket)


async def on_page(room: WorkRoom, run: Any, question: Any, words: str, by: str) -> str:
    """Answer on the page of questions; return why it was refused, or an empty text."""
    browser = room.browser()
    page = (await browser.get(QUESTIONS)).text
    fields = [(name, hidden(page, name)) for name in ("form_token", "run", "number")]
    if question.asked.fields:
        given = dict(part.strip().partition(" = ")[::2] for part in words.replace(";", "\n").split("\n"))
        places = {one.name: place for place, one in enumerate(question.asked.fields)}
        fields += [("names", name) for name in places]
        fields += [(f"v{places[name]}", value) for name, value in given.items() if name in places]
    else:
        fields.append(("answer", words))
    found = await post(browser, QUESTIONS, *fields, ("by", by))
    return "" if found.status_code == 303 else found.text


async def over_http(room: WorkRoom, run: Any, question: Any, words: str, by: str) -> str:
    """Answer as the command line does, through administration."""
    operator = room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}")
    body = {"number": question.number, "answer": words, "by": by}
    found = await operator.post("/admin/questions", json=body)
    return "" if found.status_code == 200 else found.text


async def in_chat(room: WorkRoom, run: Any, question: Any, words: str, by: str) -> str:
    """Answer with the command of a chat."""
    source = SessionSource(platform=Platform.TELEGRAM, chat_id="1", chat_type="dm", user_id="7", user_name=by)
    chat = Questions(room.runs.mailbox, room.stores.threads, room.clock)
    decided = await chat.decide([run.thread_id], source, f"{question.number} {words}", approved=None)
    return "" if decided.note == decided.answer else decided.note


async def by_mail(room: WorkRoom, run: Any, question: Any, words: str, by: str) -> str:
    """Answer by a reply to the message that asks; return the text that its sender gets."""
    [asks] = [one for one in await room.messages() if question.text in one.body_md]
    reply = {"project_key": "postroom-people", "sender_name": by, "message_id": asks.id, "body_md": words}
    sent = await room.mail.call("reply_message", reply, caller=POSTROOM)
    [seen] = sent["deliveries"][0]["seen"]
    return seen if seen.startswith("waits") else ""


SURFACES = [on_page, over_http, in_chat, by_mail]


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("kind", KINDS)
async def test_each_surface_takes_the_same_answer_and_the_agent_gets_it(room, surface, kind):
    run, question = await asked(room, **KINDS[kind])
    words, result, told = GOOD[kind]
    assert await surface(room, run, question, words, "ana") == ""
    await room.turn()
    after = await room.stores.threads.load_run(run.run_id)
    [given] = after.answered
    assert (given.decision.result, given.decision.by) == (result, "ana")
    assert after.status is RunStatus.DONE
    assert f"You asked a person: {question.text}\n{told}" in room.agents.told[-1]
    [shown] = await room.look(room.questions.given_answers, SLUG, limit=9)
    assert (shown.by, shown.number) == ("ana", question.number)


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("kind", KINDS)
async def test_each_surface_refuses_an_answer_of_the_wrong_kind_and_says_what_is_open(room, surface, kind):
    run, question = await asked(room, **KINDS[kind])
    for words in BAD[kind]:
        if surface is by_mail and not words.strip():
            continue  # a message without a text is refused before
        why = await surface(room, run, question, words, "ana")
        assert why, words
        if words:
            assert "accepts" in why, why
            assert question.number in why
        assert (await waiting(room))[1] == question
    assert await surface(room, run, question, GOOD[kind][0], "ana") == ""
    await room.turn()
    assert (await room.stores.threads.load_run(run.run_id)).status is RunStatus.DONE


@pytest.mark.parametrize("surface", SURFACES)
async def test_only_those_whom_the_question_names_can_answer_and_others_are_told_who_may(room, surface):
    run, question = await asked(room, choices=["EUR", "USD"], to=["human:ana"])
    why = await surface(room, run, question, "EUR", "ben")
    assert "ben may not answer" in why.casefold()
    assert "from ana" in why
    assert (await waiting(room))[1] == question
    assert await surface(room, run, question, "EUR", "ana") == ""


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("by", ["human:ana", "Human: ANA", " human:Ana "])
async def test_a_person_is_named_with_or_without_the_prefix_of_the_address(room, surface, by):
    run, question = await asked(room, choices=["EUR", "USD"], to=["human:ana"], not_by=["human:ben"])
    assert "except ben" in await surface(room, run, question, "EUR", by.casefold().replace("ana", "ben"))
    assert await surface(room, run, question, "EUR", by) == ""
    await room.turn()
    record = await room.questions.show(question.number)
    assert record["answered_by"].casefold() == "ana"


async def test_a_prefix_without_a_name_is_not_a_person(room):
    _, question = await asked(room)
    with pytest.raises(InvalidArgument, match='"human:" contains no name'):
        await room.questions.answer(question.number, "yes", by="human:")


@pytest.mark.parametrize("surface", SURFACES)
async def test_the_person_who_asked_for_the_work_cannot_approve_it(room, surface):
    room.agents.asks = {"not_by": ["starter"]}
    browser = room.browser()
    asks = {
        "project_key": "postroom-people",
        "sender_name": "ben",
        "to": [f"Ash@{SLUG}"],
        "subject": "Drop it",
    }
    await room.mail.call("send_message", {**asks, "body_md": "Drop the table."}, caller=POSTROOM)
    await room.turn()
    await browser.aclose()
    run, question = await waiting(room)
    assert question.asked.not_by == ("human:ben",)
    assert "except ben" in await surface(room, run, question, "yes", "ben")
    assert (await waiting(room))[1] == question
    assert await surface(room, run, question, "yes", "ana") == ""


@pytest.mark.parametrize(
    ("agent", "where"), [("curl/8.5.0", "over HTTP"), ("postroom-cli", "at the command line")]
)
async def test_the_record_says_whether_a_command_or_another_program_answered(room, agent, where):
    _, question = await asked(room)
    operator = room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}", **{"User-Agent": agent})
    given = await operator.post(
        "/admin/questions", json={"number": question.number, "answer": "yes", "by": "ana"}
    )
    assert given.status_code == 200, given.text
    [shown] = await room.look(room.questions.given_answers, SLUG, limit=9)
    assert shown.where == where


@pytest.mark.parametrize("surface", [on_page, over_http, in_chat])
async def test_nobody_answers_under_the_name_of_an_agent_that_may_not_answer(room, surface):
    run, question = await asked(room, not_by=["starter"])
    assert question.asked.not_by == (f"Ada@{SLUG}",)
    for by in ("Ada", "ada", " Ada ", f"Ada@{SLUG}", f"Ada@{PROJECT}", "human:Ada"):
        assert f"except Ada@{SLUG}" in await surface(room, run, question, "yes", by), by
        assert (await waiting(room))[1] == question
    assert await surface(room, run, question, "yes", "ana") == ""


async def test_a_second_answer_is_told_the_first_on_every_surface(room):
    run, question = await asked(room, choices=["EUR", "USD"])
    assert await over_http(room, run, question, "EUR", "ana") == ""
    assert "answered already: ana" in await over_http(room, run, question, "USD", "ben")
    told = f"Question {question.number} was answered already. Answered: EUR by ana."
    assert await in_chat(room, run, question, "USD", "ben") == told
    with pytest.raises(StaleDecision, match="ana"):
        await room.questions.answer(question.number, "USD", by="ben")
    await room.turn()
    [given] = (await room.stores.threads.load_run(run.run_id)).answered
    assert given.decision.result == {"choice": "EUR"}


async def test_a_late_answer_is_told_the_words_of_the_first_and_json_says_yes_with_true(room):
    run, question = await asked(room, choices=["EUR", "USD"])
    assert await over_http(room, run, question, "EUR", "ana") == ""
    assert 'ana over HTTP answered \\"EUR\\" at' in await over_http(room, run, question, "USD", "ben")
    await room.turn()
    run, question = await asked(room)
    assert await over_http(room, run, question, True, "ana") == ""  # type: ignore[arg-type]
    told = await over_http(room, run, question, "no", "ben")
    assert "ana over HTTP answered yes at" in told


@pytest.mark.parametrize("surface", SURFACES)
async def test_a_yes_in_another_language_is_an_answer_in_words_that_permits_nothing(room, surface):
    run, question = await asked(room)
    assert await surface(room, run, question, "Ja", "ana") == ""
    await room.turn()
    [given] = (await room.stores.threads.load_run(run.run_id)).answered
    assert (given.decision.approved, given.decision.result) == (None, {"text": "Ja"})
    assert f"You asked a person: {question.text}\nThey answered: Ja" in room.agents.told[-1]


async def test_not_now_leaves_the_question_open_and_is_neither_yes_nor_no(room, clock):
    run, question = await asked(room)
    browser = room.browser()
    page = (await browser.get(QUESTIONS)).text
    fields = [(name, hidden(page, name)) for name in ("form_token", "run", "number")]
    put_off = await post(browser, QUESTIONS, *fields, ("do", "snooze"), ("until", "1h"), ("by", "ana"))
    assert put_off.status_code == 303
    [shown] = await room.questions.questions()
    assert shown["snoozed_until"] is not None
    assert "Snoozed. The question comes back <time" in (await browser.get(QUESTIONS)).text
    clock.advance(timedelta(milliseconds=3_600_001))
    [shown] = await room.questions.questions()
    assert shown["snoozed_until"] is None
    assert (await waiting(room))[1] == question
    await room.questions.snooze(question.number, for_ms=60_000)
    assert await over_http(room, run, question, "no", "ana") == ""


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize(
    ("words", "approved"),
    [("Yes.", True), ("YES!", True), (" yes, please. ", True), ("No.", False), ("No, thank you!", False)],
)
async def test_a_plain_yes_or_no_to_an_action_counts_however_a_person_writes_it(
    room, surface, words, approved
):
    run, question = await asked(room, **KINDS["yes_no"])
    assert await surface(room, run, question, words, "ana") == ""
    await room.turn()
    [given] = (await room.stores.threads.load_run(run.run_id)).answered
    assert given.decision.approved is approved


@pytest.mark.parametrize("address", ["/admin/questions", "/admin/questions/snooze"])
@pytest.mark.parametrize("by", ["", "  ", "\t"])
async def test_an_answer_and_a_snooze_under_a_blank_name_are_refused_and_change_nothing(room, address, by):
    _, question = await asked(room)
    operator = room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}")
    body = {"number": question.number, "by": by}
    body |= {"seconds": 60} if address.endswith("snooze") else {"answer": "yes"}
    refused = await operator.post(address, json=body)
    assert (refused.status_code, "the name in `by` is blank" in refused.text) == (400, True), refused.text
    [shown] = await room.questions.questions()
    assert shown["snoozed_until"] is None
    assert (await waiting(room))[1] == question


@pytest.mark.parametrize("seconds", [-300, 0.4, 90 * 86_400 + 1, 400 * 86_400, 1_000_000_001, 1e300])
async def test_a_question_is_not_put_off_by_a_time_out_of_range(room, seconds):
    _, question = await asked(room)
    operator = room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}")
    body = {"number": question.number, "seconds": seconds}
    refused = await operator.post("/admin/questions/snooze", json=body)
    assert (refused.status_code, "invalid_argument" in refused.text) == (400, True), refused.text
    [shown] = await room.questions.questions()
    assert shown["snoozed_until"] is None


@pytest.mark.parametrize(
    ("asks", "result"),
    [
        ({"choices": ["EUR", "USD"], "on_timeout": "default", "default": "USD"}, {"choice": "USD"}),
        ({"text": True, "on_timeout": "default", "default": "as before"}, {"text": "as before"}),
        ({"choices": ["x", "y"], "on_timeout": "default", "default": "y"}, {"choice": "y"}),
        ({"choices": ["X", "Y", "Z"], "on_timeout": "default", "default": "2"}, {"choice": "Y"}),
        (
            {
                "form": {"properties": {"axis": {"enum": ["x", "y"]}}},
                "on_timeout": "default",
                "default": "axis=y",
            },
            {"values": {"axis": "y"}},
        ),
        ({"on_timeout": "no"}, {"approved": False}),
    ],
)
async def test_silence_gives_the_default_which_is_never_a_yes(room, clock, asks, result):
    run, _ = await asked(room, timeout_seconds=60, **asks)
    clock.advance(timedelta(milliseconds=60_001))
    assert await QuestionTimeouts(room.runs, clock, clock).round() == 1
    await room.turn()
    [given] = (await room.stores.threads.load_run(run.run_id)).answered
    assert (given.decision.result, given.decision.by) == (result, "nobody")


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ({"choices": ["yes", "no"]}, "yes"),
        ({"choices": ["Approve", "Reject"]}, "1"),
        ({"choices": ["Yes, deploy", "No"]}, "Yes, deploy"),
        ({"text": True}, "Yes"),
        ({"text": True}, " \uff4f\uff4b! "),
        ({"text": True}, "true."),
        ({"text": True}, "**Yes**"),
        ({"text": True}, '"Approved"'),
        ({"text": True}, "> __OK__, deploy"),
        ({"text": True}, "Go ahead"),
        ({"text": True}, "Sure"),
        ({"text": True}, "do it, yes"),
        ({"form": {"properties": {"ok": {"type": "boolean"}}}}, '{"ok": true}'),
        ({"form": {"properties": {"ok": {"type": "boolean"}}}}, "y"),
        ({"form": {"properties": {"a": {"enum": ["Allow", "Deny"]}}}}, "a = allow"),
        ({"choices": ["y", "n"]}, "y"),
        ({"choices": ["Y", "\uff2e"]}, "1"),
        ({"choices": ["y", "later"]}, "y"),
        ({"choices": ["true", "false"]}, "true"),
        ({"form": {"properties": {"a": {"enum": ["n", "x", "y"]}}}}, "a = y"),
    ],
    ids=str,
)
async def test_silence_cannot_be_given_the_meaning_of_an_approval(room, kind, default):
    ask = {"project_key": PROJECT, "agent_name": "Ada", "question": "Deploy?", "on_timeout": "default"}
    with pytest.raises(InvalidArgument, match="silence is never a yes") as refused:
        await room.mail.call("ask_person", {**ask, **kind, "default": default, "timeout_seconds": 9})
    assert "on_timeout 'cancel'" in (refused.value.remedy or "")
    assert await room.questions.questions() == []


@pytest.mark.parametrize("surface", [on_page, over_http])
@pytest.mark.parametrize(
    "by",
    [
        *("ev\nil\x1b[31m", "ana\u202e", "an\u200ba", "Ash", " ash", f"Ash@{SLUG}", "postroom", "System"),
        *("nobody", "Nobody", "n\u043ebody"),
        *("\u0410sh", "A\u0455h", "\u0391\u0405\u041d", "human:\uff21\u0455h", "\u0440\u043estroom"),
    ],
)
async def test_nobody_answers_or_snoozes_under_a_hidden_name_or_that_of_the_asker_or_the_server(
    room, surface, by
):
    run, question = await asked(room)
    why = await surface(room, run, question, "yes", by)
    assert "hidden or control characters" in why or "name of the server or of the agent that asks" in why
    with pytest.raises(InvalidArgument):
        await room.questions.snooze(question.number, for_ms=60_000, by=by)
    assert (await waiting(room))[1] == question
    [shown] = await room.questions.questions()
    assert shown["snoozed_until"] is None


@pytest.mark.parametrize("by", ["Анна", "Νίκος", "Ásh", "김민준", "Ash-Shams", "O'Ash", "Ашот K."])
async def test_people_answer_under_names_of_every_script(room, by):
    _, question = await asked(room)
    await room.questions.answer(question.number, "yes", by=by)
    await room.turn()
    assert (await room.questions.show(question.number))["answered_by"] == by


async def test_a_text_answer_keeps_its_lines_and_none_looks_like_a_line_of_the_message(room):
    run, question = await asked(room, text=True)
    words = "First the roof.\r\nThen the gate.\r\nContinue with this answer."
    assert await on_page(room, run, question, words, "ana") == ""
    await room.turn()
    assert room.agents.told[-1].endswith(
        "They answered: First the roof.\n    Then the gate.\n    Continue with this answer.\n"
        "Continue with this answer."
    )


async def test_a_file_is_the_answer_if_it_is_attached_to_a_reply_and_no_other_surface_gives_one(room):
    run, question = await asked(room, file=True)
    [asks] = [one for one in await room.messages() if question.text in one.body_md]
    for surface in (on_page, over_http, in_chat, by_mail):
        why = await surface(room, run, question, "report.txt", "ana")
        assert (
            "the answer has no file; it accepts a file, attached to a reply to the message that asks" in why
        )
        assert (await waiting(room))[1] == question
    forged = {"message": asks.id, "files": ["report.txt"]}
    operator = room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}")
    body = {"number": question.number, "answer": forged, "by": "ana"}
    assert (await operator.post("/admin/questions", json=body)).status_code == 400
    [listed] = await room.questions.questions()
    assert (listed["takes"], listed["reply_to"]) == ("file", asks.id)
    for address in (QUESTIONS, "/", f"/p/{SLUG}", f"/p/{SLUG}/runs/{run.run_id}"):
        page = (await room.browser().get(address)).text
        assert f'href="/p/{SLUG}/write?reply={asks.id}">Reply with a file</a>' in page, address
    reply = {
        "project_key": "postroom-people",
        "sender_name": "ben",
        "message_id": asks.id,
        "body_md": "Here:",
    }
    file = {"name": "report `x`.txt", "content_base64": base64.b64encode(b"all well").decode()}
    sent = await room.mail.call("reply_message", {**reply, "attachments": [file]}, caller=POSTROOM)
    await room.turn()
    after = await room.stores.threads.load_run(run.run_id)
    [given] = after.answered
    assert (after.status, given.decision.by) == (RunStatus.DONE, "ben")
    assert given.decision.result == {"message": number(sent), "files": [file["name"]]}
    told = f"They answered: attached to message {number(sent)}: `report 'x'.txt`: Here: Read a file with get_attachment."
    assert [told in one for one in room.agents.told].count(True) == 1
    wanted = {"project_key": PROJECT, "agent_name": "Ash", "message_id": number(sent)}
    found = await room.mail.call("get_attachment", {**wanted, "name": file["name"]})
    assert "all well" in json.dumps(found)


async def test_a_question_that_no_mail_can_ask_takes_no_file(room):
    asks = {"project_key": PROJECT, "agent_name": "Ada", "question": "Which?", "file": True}
    with pytest.raises(InvalidArgument, match="nobody can reply with a file") as refused:
        await room.mail.call("ask_person", asks)
    assert refused.value.remedy == "ask for a text, such as the path of the file"
    assert await room.questions.questions() == []


async def test_a_yes_holds_for_exactly_the_action_that_was_shown(room):
    run, question = await asked(room, action="DROP TABLE payments_old")
    page = (await room.browser().get(QUESTIONS)).text
    assert "DROP TABLE payments_old" in page
    assert question.asked.digest in page
    assert "DROP TABLE payments_old" in card_of(question).text
    assert await over_http(room, run, question, "yes", "ana") == ""
    await room.turn()
    [given] = (await room.stores.threads.load_run(run.run_id)).answered
    assert given.decision.result == {"approved": True, "digest": question.asked.digest}
    assert question.asked.digest in room.agents.told[-1]


@pytest.mark.parametrize(
    ("action", "shown"),
    [
        ("rm a\u202eb", r"rm a\u202eb"),
        ("rm a\x07b", r"rm a\x07b"),
        ("rm a\u200bb", r"rm a\u200bb"),
        ("rm a\u200db", r"rm a\u200db"),
        (r"rm a\u202eb", r"rm a\x5cu202eb"),
    ],
)
async def test_actions_with_different_digests_look_different_on_every_surface(room, action, shown):
    _, question = await asked(room, action=action)
    assert question.asked.action == action
    [listed] = await room.questions.questions()
    assert (listed["action"], listed["action_shown"]) == (action, shown)
    browser = room.browser()
    pages = [(await browser.get(address)).text for address in (QUESTIONS, f"/p/{SLUG}", "/")]
    [mail] = [one.body_md for one in await room.messages() if question.text in one.body_md]
    [opened] = await room.look(lambda tx: list(room.questions.listed(tx)))
    chat = [card_of(question).text, closed_card(question, "Approved."), listed_question(question)]
    for text in (*pages, *chat, mail, elicitation(opened)["message"]):
        assert shown in text
        assert action == shown or action not in text


@pytest.mark.parametrize("asks", ["May I?", "```", "~~~~\nMay I?", "<pre>", "- May I?"])
@pytest.mark.parametrize("action", ["a*b*c", "```\n*x*\n````", "~~~\n# b", "    x\n\n<b>y</b>", "`"])
async def test_a_card_shows_an_action_exactly_whatever_markdown_is_in_it_or_in_the_question(action, asks):
    kind = asked_for(action=action)
    card = card_of(Question(number="1a2b3c", run_id="r", call_id="c", text=asks, asked=kind), before=asks)
    [shown, *_] = [one for one in MarkdownIt().parse(card.text) if one.type in ("fence", "code_block")]
    assert (shown.type, shown.content) == ("fence", f"{action}\n")


async def test_the_message_that_asks_shows_the_action_first_and_which_answers_the_question_takes(room):
    room.agents.output, action = ["~~~ It is old."], "```\nDROP TABLE payments_old\n```"
    _, question = await asked(room, action=action, to=["human:ana"])
    [asks] = [one for one in await room.messages() if question.text in one.body_md]
    [shown, *_] = [one for one in MarkdownIt().parse(asks.body_md) if one.type in ("fence", "code_block")]
    assert (shown.type, shown.content) == ("fence", f"{action}\n")
    assert "- May I? (takes yes or no, from ana)\n" in asks.body_md


async def test_a_changed_action_is_another_question_and_the_number_of_the_former_is_stale(room):
    numbers = list[str]()

    async def ask(activation: Any) -> None:
        base = {
            "project_key": PROJECT,
            "agent_name": "Bo",
            "run_id": activation.run_id,
            "question": "May I drop it?",
        }
        for action in ("DROP TABLE a", "DROP TABLE a", "DROP TABLE b"):
            view = await room.mail.call("ask_person", {**base, "action": action})
            numbers.append(view["question_id"])

    async def act(activation: Any) -> Any:
        if not activation.decisions:
            await ask(activation)
        return done(activation, "I wait.")

    room.agents.act = act
    await room.send("Ada", "Bo")
    await room.turn()
    first, again, second = numbers
    assert first == again != second
    _, question = await waiting(room)
    assert (question.number, question.asked.action) == (second, "DROP TABLE b")
    with pytest.raises(StaleDecision):
        await room.questions.answer(first, True, by="ana")
    assert (await waiting(room))[1] == question


@pytest.mark.parametrize(
    "asks",
    [
        {"choices": ["one"]},
        {"choices": ["a", "A"]},
        {"choices": ["a\nb", "c"]},
        {"choices": ["x" * 61, "y"]},
        {"choices": ["a", "b"], "text": True},
        {"file": True, "text": True},
        {"file": True, "action": "DROP TABLE a"},
        {"file": True, "on_timeout": "default", "timeout_seconds": 9, "default": "a.txt"},
        {"form": {"type": "object", "properties": {}}},
        {"form": {"type": "object", "properties": {"a": {"type": "object"}}}},
        {"form": {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$"}}}},
        {"form": {"type": "object", "properties": {"<b>": {"type": "string"}}}},
        {"form": {"type": "object", "properties": {f"f{n}": {"type": "string"} for n in range(11)}}},
        {"on_timeout": "default", "timeout_seconds": 9, "default": "yes"},
        {"choices": ["a", "b"], "on_timeout": "no", "timeout_seconds": 9},
        {"choices": ["a", "b"], "on_timeout": "default", "timeout_seconds": 9, "default": "c"},
        {"to": ["human:ana"], "not_by": ["human:ana"]},
        {"to": ["Bo"]},
    ],
    ids=str,
)
async def test_a_question_that_nobody_could_answer_as_asked_is_refused(room, asks):
    refused = list[Exception]()

    async def act(activation: Any) -> Any:
        given = {
            "project_key": PROJECT,
            "agent_name": "Bo",
            "run_id": activation.run_id,
            "question": "Which?",
        }
        try:
            await room.mail.call("ask_person", {**given, **asks})
        except (InvalidArgument, NotPermitted) as error:
            refused.append(error)
        return done(activation, "Done.")

    room.agents.act = act
    await room.send("Ada", "Bo")
    await room.turn()
    assert len(refused) == 1
    assert await room.questions.questions() == []


NO_FORM = "the form is not a flat JSON schema: "
"""How the refusal of a form begins."""


@pytest.mark.parametrize(
    ("asks", "why"),
    [
        ({"question": " \n"}, "the question has no text"),
        ({"question": "\u200b"}, "the question has no text"),
        ({"choices": ["EUR", "USD", "EUR"]}, 'choices contain "EUR" twice'),
        ({"choices": ["EUR", "eur"]}, 'choices contain "eur" twice'),
        ({"choices": ["\u00e9", "e\u0301"]}, 'choices contain "e\u0301" twice'),
        ({"form": {"properties": {"a": {"enum": ["EUR", "EUR"]}}}}, 'the values of a contain "EUR" twice'),
        (
            {"form": {"properties": {"a": {"oneOf": [{"const": "EUR"}, {"const": "EUR"}]}}}},
            'the values of a contain "EUR" twice',
        ),
        ({"form": {"properties": {"a": {"enum": []}}}}, "the values of a must be 2 to 20, not 0"),
        ({"form": {"properties": {"a": {"enum": "EUR"}}}}, "the values of a must be a list of strings"),
        ({"form": {"properties": {"a": {"format": "email"}}}}, 'the field a cannot have "format", only type'),
        ({"form": {"properties": {"a": {"default": "x"}}}}, 'the field a cannot have "default", only type'),
        ({"form": {"properties": {"a": {"minimum": 3}}}}, 'the field a cannot have "minimum", only type'),
        (
            {"form": {"properties": {"a": {"oneOf": [{"const": "EUR", "title": "Euro"}, {"const": "USD"}]}}}},
            "each choice of a must have a const; its title, if any, must equal the const",
        ),
        (
            {"form": {"properties": {"a": {"minLength": 5, "maxLength": 2}}}},
            "no value of a is within its limits",
        ),
        (
            {"form": {"properties": {"a": {}}, "required": [["a"]]}},
            "required must be a list of property names",
        ),
        ({"form": {"properties": {"a": {}}, "required": ["b"]}}, "required must be a list of property names"),
        ({"form": {"properties": {"a": {}}, "items": {}}}, 'the form cannot have "items", only type'),
        *(
            (
                {**asks, "action": "DROP TABLE"},
                "a question with an action must be answered with yes or no, because a yes permits the action",
            )
            for asks in ({"choices": ["Yes, drop it", "Only a copy"]}, {"text": True}, {"form": PRICES})
        ),
    ],
    ids=str,
)
async def test_the_refusal_of_a_question_names_what_is_wrong_with_it(room, asks, why):
    with pytest.raises(InvalidArgument) as refused:
        await room.mail.call(
            "ask_person", {"project_key": PROJECT, "agent_name": "Ada", "question": "Which?", **asks}
        )
    assert refused.value.message.removeprefix(NO_FORM).startswith(why)
    assert await room.questions.questions() == []


@pytest.mark.parametrize(
    ("asks", "answer", "why"),
    [
        (KINDS["choice"], True, "true is not one of the choices; it accepts one of: EUR, USD"),
        (KINDS["choice"], {"choice": "EUR"}, '{"choice": "EUR"} is not one of the choices'),
        (KINDS["yes_no"], None, "null is neither yes nor no"),
        (KINDS["text"], False, "false is not text"),
        (KINDS["text"], "  ", "the answer has no text"),
        (
            KINDS["form"],
            {"amount": 5, "currency": True},
            "true is not a valid value for the field currency (EUR or USD)",
        ),
        (
            KINDS["form"],
            "amount = 5; currency = EUR; currency = USD",
            'the form has the field "currency" twice',
        ),
        (KINDS["form"], '{"amount": 5, "amount": 6}', 'the form has the field "amount" twice'),
    ],
    ids=str,
)
async def test_the_refusal_of_an_answer_is_in_the_words_of_json(room, asks, answer, why):
    _, question = await asked(room, **asks)
    with pytest.raises(InvalidArgument) as refused:
        await room.questions.answer(question.number, answer, by="ana")
    assert why in refused.value.message
    assert (await waiting(room))[1] == question


@pytest.mark.parametrize(
    ("bounds", "why", "help_text"),
    [
        ({"maximum": 10}, "amount must be at most 10;", "amount (number, at most 10, optional)"),
        ({"minimum": 90}, "amount must be at least 90;", "amount (number, at least 90, optional)"),
        (
            {"minimum": 1, "maximum": 10},
            "amount must be between 1 and 10;",
            "amount (number, 1 to 10, optional)",
        ),
    ],
)
async def test_a_number_outside_its_bounds_is_told_only_the_bounds_that_exist(room, bounds, why, help_text):
    form = {"type": "object", "properties": {"amount": {"type": "number", **bounds}}}
    _, question = await asked(room, form=form)
    with pytest.raises(InvalidArgument) as refused:
        await room.questions.answer(question.number, "amount = 50", by="ana")
    assert why in refused.value.message
    assert help_text in refused.value.message


async def test_the_refusal_of_a_second_answer_names_the_fields_of_the_first(room):
    _, question = await asked(room, **KINDS["form"])
    await room.questions.answer(question.number, {"amount": 5, "currency": "EUR"}, by="ana")
    with pytest.raises(
        StaleDecision, match=r"answered .(amount = 5, currency = EUR|currency = EUR, amount = 5)"
    ):
        await room.questions.answer(question.number, {"amount": 6, "currency": "USD"}, by="bob")


@pytest.mark.parametrize(
    ("kind", "address", "note"),
    [
        ("yes_no", "/", "Approved. <bdi>Ash</bdi> asked: <bdi>May I?</bdi>"),
        ("yes_no_or_words", "/", "Answered. <bdi>Ash</bdi> asked: <bdi>May I?</bdi>"),
        ("yes_no", QUESTIONS, "Answered with <b>yes</b>: <bdi>May I?</bdi>"),
        ("yes_no_or_words", QUESTIONS, "Answered in words: <bdi>May I?</bdi>"),
    ],
)
async def test_a_note_and_a_summary_name_who_answered_which_question_with_what(room, kind, address, note):
    _, question = await asked(room, **KINDS[kind])
    words = GOOD[kind][0]
    browser = room.browser()
    page = (await browser.get(address)).text
    names = ("form_token", "run", "number", *(["back"] if address == "/" else []))
    fields = [(name, hidden(page, name)) for name in names]
    answered = await post(browser, QUESTIONS, *fields, ("by", "ana"), ("answer", words))
    assert note in " ".join((await browser.get(answered.headers["location"])).text.split())
    await room.turn()
    found = await room.mail.call("catch_up", {"project_key": PROJECT}, caller=Caller(operator=True))
    told = words if words == "yes" else f'"{words}"'
    said = f'ana answered question {question.number} of Ash, "May I?", with {told}.'
    assert said in [one["text"] for one in found["sentences"]]
    await room.mail.issue_token(PROJECT, "Ada", token_hash("pra_Ada"))
    found = await room.mail.call("catch_up", {"project_key": PROJECT}, caller=Caller(agent_token="pra_Ada"))
    said = f"A person answered question {question.number} of Ash."
    assert said in [one["text"] for one in found["sentences"]], "it does not read the answers to others"


async def test_hostile_words_of_a_form_are_contained_on_the_page(room):
    form = {
        "type": "object",
        "properties": {"name": {"type": "string", "title": "<script>alert(1)</script>\u202e"}},
    }
    _, question = await asked(room, form=form)
    for address in (QUESTIONS, f"/p/{SLUG}", "/"):
        page = (await room.browser().get(address)).text
        assert "<script>alert" not in page
        assert "\u202e" not in page
    assert "\u202e" not in card_of(question).text


async def test_a_hostile_action_is_contained_on_the_page(room):
    await asked(room, action="</pre><script>alert(2)</script>")
    for address in (QUESTIONS, f"/p/{SLUG}", "/"):
        assert "<script>alert" not in (await room.browser().get(address)).text


@pytest.mark.parametrize("words", ["true", "y", "n", "false", "yes.", "Yes, but only after the backup"])
async def test_only_a_plain_yes_or_no_is_one_if_words_are_an_answer_too(room, words):
    run, question = await asked(room)
    assert await over_http(room, run, question, words, "ana") == ""
    await room.turn()
    assert f"They answered: {words}" in room.agents.told[-1]


async def test_a_yes_by_mail_reaches_the_agent_as_the_answer_with_the_digest_of_the_action(room):
    run, question = await asked(room, action="DROP TABLE payments_old")
    assert await by_mail(room, run, question, "yes", "ana") == ""
    await room.turn()
    told = room.agents.told[-1]
    assert told.startswith("You asked a person: May I?\nThe answer is yes."), told
    assert f"(digest {question.asked.digest})" in told


async def test_a_question_that_is_repeated_with_its_key_after_the_answer_returns_the_answer(room):
    views = list[dict[str, Any]]()

    async def act(activation: Any) -> Any:
        base = {"project_key": PROJECT, "agent_name": "Bo", "run_id": activation.run_id}
        asks = {**base, "question": "May I drop it?", "idempotency_key": "drop"}
        views.append(await room.mail.call("ask_person", asks))
        return done(activation, "I have asked.")

    room.agents.act = act
    await room.send("Ada", "Bo")
    await room.turn()
    run, question = await waiting(room)
    assert await over_http(room, run, question, "yes", "ana") == ""
    await room.turn()
    first, again = views
    assert first == {"question_id": question.number, "asked": True}
    assert again["question_id"] == question.number
    assert again["asked"] is False
    assert again["answer"].startswith("The answer is yes.")
    assert (await room.stores.threads.load_run(run.run_id)).status is RunStatus.DONE


async def test_a_form_reaches_the_agent_as_json_that_no_text_in_a_field_can_imitate(room):
    fields = {"to": "string", "count": "integer", "amount": "number", "ratio": "number", "sure": "boolean"}
    properties = {name: {"type": of_type} for name, of_type in fields.items()}
    _, question = await asked(room, form={"type": "object", "properties": properties})
    given = {"to": 'bob; amount: 999999", "count": 7', "count": 2, "amount": 5, "ratio": 0.5, "sure": True}
    await room.questions.answer(question.number, given, by="ana")
    await room.turn()
    [line] = [one for one in room.agents.told[-1].splitlines() if one.startswith("They answered: ")]
    told = line.removeprefix("They answered: ")
    assert json.loads(told) == given
    assert '"amount": 5,' in told


FIELDS = {
    "properties": {
        "currency": {"type": "string"},
        "amount": {"type": "integer", "minimum": 1},
        "note": {"type": "string"},
    },
    "required": ["currency"],
}


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("currency=EUR amount=5", {"currency": "EUR", "amount": 5}),
        ("currency: EUR, amount: 5", {"currency": "EUR", "amount": 5}),
        ("currency=EUR,amount=5; note=as before, for all", None),
        ("currency=EUR note= amount=5", {"currency": "EUR", "amount": 5}),
        ("currency=EUR\nnote=costs x=5, as before", {"currency": "EUR", "note": "costs x=5, as before"}),
        *(
            (f"currency: EUR\nnote{sign}{words}", {"currency": "EUR", "note": words})
            for sign in ("=", ": ")
            for words in (
                *(
                    "see https://example.org/a?b=c",
                    "https://example.org:8080/",
                    "C:\\Temp",
                    "use postgres:16",
                ),
                *(
                    "at 10:30, or 11:15",
                    "10:30",
                    "Re: invoice",
                    "but remember: pay first",
                    "--limit=5 for all",
                ),
            )
        ),
        ("currency: EUR\nnote: set DEBUG=1", {"currency": "EUR", "note": "set DEBUG=1"}),
        ("currency: EUR\nnote = pay, however: not all", {"currency": "EUR", "note": "pay, however: not all"}),
    ],
)
async def test_fields_that_share_a_line_are_read_as_fields(room, typed, values):
    _, question = await asked(room, form=FIELDS)
    wanted = {"currency": "EUR", "amount": 5, "note": "as before, for all"} if values is None else values
    assert json.loads((await room.questions.answer(question.number, typed, by="kim"))["answer"]) == wanted


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("reason: x: y", "x: y"),
        ("reason: The pier is closed.\nWe open on Monday.", "The pier is closed.\nWe open on Monday."),
        ("reason = a; b", "a; b"),
        ("The pier is closed.\nreason: rain", "The pier is closed.\nreason: rain"),
        ("raeson=rain", "raeson=rain"),
    ],
)
async def test_the_name_before_the_value_of_the_only_field_is_not_part_of_the_value(room, typed, value):
    _, question = await asked(room, form={"properties": {"reason": {"type": "string"}}})
    answered = await room.questions.answer(question.number, typed, by="kim")
    assert json.loads(answered["answer"]) == {"reason": value}


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("currency=EUR amount=0", "amount must be at least 1"),
        ("currency=EUR and amount=5", "write each field on its own line, as `name = value`"),
        ("currency=EUR note=the amount: 5", "write each field on its own line, as `name = value`"),
        ("currency=EUR currency=USD", 'the form has the field "currency" twice'),
        *(
            (typed, 'the form has no field "amuont"')
            for typed in (
                *("currency: EUR, amuont: 5", "currency=EUR amuont=5", "currency=EUR,amuont=5 note=x"),
                *("currency: EUR, amuont: five or six", "currency: EUR, amuont:5", "currency=EUR amuont: 5"),
                *("currency=EUR\namuont=5", "currency=EUR; amuont=5", "amuont=5 currency=EUR"),
                *(
                    "currency=EUR\nnote=dear amuont=5",
                    "currency = EUR amuont = 5",
                    "currency=EUR,\tamuont =5",
                ),
            )
        ),
        ("currency: EUR, price: 5", 'the form has no field "price"; for a text with such words, write JSON'),
    ],
)
async def test_fields_that_share_a_line_are_refused_if_they_are_not_clear(room, typed, why):
    _, question = await asked(room, form=FIELDS)
    with pytest.raises(InvalidArgument, match=re.escape(why)):
        await room.questions.answer(question.number, typed, by="kim")
    assert [one["number"] for one in await room.questions.questions()] == [question.number]


@pytest.mark.parametrize(
    ("asks", "answer"),
    [
        ({}, "no\0body"),
        ({"text": True}, "a\0b"),
        ({"form": {"properties": {"to": {"type": "string"}}}}, {"to": "bob\0"}),
        ({"form": {"properties": {"to": {"type": "string"}}}}, "to=bob\0"),
    ],
)
async def test_a_nul_character_is_refused_in_an_answer_as_in_a_message(room, asks, answer):
    _, question = await asked(room, **asks)
    for given, why in ((answer, ""), ("yes", "because\0")):
        with pytest.raises(InvalidArgument, match="contains a NUL character"):
            await room.questions.answer(question.number, given, why=why, by="ana")
    assert [one["number"] for one in await room.questions.questions()] == [question.number]


@pytest.mark.parametrize("address", ["/admin/questions", "/admin/questions/snooze"])
async def test_a_number_in_json_names_the_question_if_it_has_six_digits(room, address):
    numbers = [""]

    async def asks_until_a_number_has_only_digits(activation):
        which = {"project_key": PROJECT, "agent_name": "Ash", "run_id": activation.run_id}
        while not numbers[-1].isdigit() or numbers[-1].startswith("0"):
            view = await room.mail.call("ask_person", {**which, "question": f"Question {len(numbers)}?"})
            numbers.append(view["question_id"])

    room.agents.asking, room.agents.act = set(), asks_until_a_number_has_only_digits
    await room.send("Ada", "Ash")
    await room.turn()
    operator = room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}")
    body = {"answer": "yes"} if address == "/admin/questions" else {"seconds": 60}
    meant = int(numbers[-1])
    for other in (meant // 10, -meant, meant + 0.5, 0):
        refused = await operator.post(address, json={"number": other, **body})
        assert (refused.status_code, "invalid_argument" in refused.text) == (400, True), other
    taken = await operator.post(address, json={"number": meant, **body})
    assert (taken.status_code, taken.json()["number"]) == (200, numbers[-1])

"""Schedules at the edges: the operator's routes, the page and its forms, and the commands."""

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from fake_postroom import FakePostroom, Raw
from postroom.app.operations import ADMINISTRATION
from postroom.cli.main import main
from postroom.contracts.errors import InvalidSchedule
from postroom.http_api.errors import to_problem
from postroom.schedules.firing import new_schedule
from postroom.schedules.ticks import refuse_unfit
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from table_rows import each_row
from waking_room import PROJECT
from work_room import SLUG, TOKEN, WorkRoom, hidden, post

PAGE = f"/p/{SLUG}/schedules"
ADMIN = "/admin/schedules"
ASKED = {
    **{"name": "standup <b>", "project": PROJECT, "sender": "Ana", "to": ["Bo"], "subject": "Plan"},
    **{"body": "What is planned?", "cron": "0 9 * * MON", "zone": "Europe/Berlin"},
}


@pytest.fixture
def stores(clock: ManualClock):
    held = SqliteStore.in_memory(clock)
    yield held, held.runs
    held.close()


@pytest_asyncio.fixture
async def room(stores, clock: ManualClock) -> AsyncIterator[WorkRoom]:
    made = WorkRoom(*stores, clock)
    await made.people("Bo", runners=("Bo",))
    await made.people_named.add("Ana", None)
    yield made
    await made.close()


def operator(room: WorkRoom):
    return room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}", Accept="application/json")


async def test_the_operator_adds_lists_pauses_triggers_and_removes_by_http(room):
    client = operator(room)
    added = (await client.post(ADMIN, json=ASKED)).json()
    assert (added["name"], added["state"], added["project"]) == (ASKED["name"], "active", SLUG)
    assert (await client.get(f"{ADMIN}?project={SLUG}")).json()["schedules"] == [added]
    named = {"name": ASKED["name"]}
    assert (await client.get(f"{ADMIN}/one", params=named)).json() == added
    assert (await client.post(f"{ADMIN}/pause", json=named)).json()["next_at"] is None
    assert (await client.post(f"{ADMIN}/resume", json=named)).json() == added
    message = (await client.post(f"{ADMIN}/trigger", json=named)).json()["message"]
    assert message == (await room.messages())[-1].id
    assert (await client.request("DELETE", ADMIN, json=named)).json() == {"removed": True}
    assert (await client.post(f"{ADMIN}/pause", json=named)).status_code == 404


async def test_bad_schedules_are_refused_with_what_is_allowed(room):
    client = operator(room)
    for given, status, word in (
        ({"cron": "0 0 31 2 *"}, 400, "not a valid cron expression"),
        ({"zone": "Mars/Base"}, 400, "unknown time zone"),
        ({"cron": None, "every_seconds": 0}, 400, "`every_seconds` must be from 1s to 3660d"),
        ({"missed": "some"}, 400, "skip, once, all"),
        ({"importance": "loud"}, 400, "importance"),
        ({"to": ["Nobody"]}, 404, "Nobody"),
    ):
        answer = await client.post(ADMIN, json=ASKED | given)
        assert (answer.status_code, word in answer.text) == (status, True), answer.text
    assert (await client.get(ADMIN)).json()["schedules"] == []


@each_row(
    "given, remedy",
    [
        ({"cron": None}, "pass either `cron`, such as 0 9 * * MON, or `every_seconds`"),
        ({"every_seconds": 60}, "pass either `cron`, such as 0 9 * * MON, or `every_seconds`"),
        ({"cron": None, "every_seconds": 0.001}, "choose another value for `every_seconds`"),
        ({"cron": None, "every_seconds": 3_600 * 99_999}, "choose another value for `every_seconds`"),
        ({"jitter_seconds": 10**7}, "choose a shorter `jitter_seconds`, or leave it out"),
        ({"missed": "never"}, "leave out `missed` to use its default"),
    ],
)
async def test_a_refusal_over_http_names_the_fields_of_the_body(room, given, remedy):
    answer = await operator(room).post(ADMIN, json=ASKED | given)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_schedule")
    assert answer.json()["remedy"] == remedy


async def test_a_wrong_choice_over_http_is_refused_with_the_choices(room):
    answer = await operator(room).post(ADMIN, json=ASKED | {"importance": "loud"})
    assert answer.json()["detail"] == "`importance` cannot be 'loud'"
    assert answer.json()["remedy"] == "`importance` must be one of: low, normal, high, urgent"


@each_row("given", [10**10, 10**30, 1e300, -1])
@each_row("field", ["every_seconds", "jitter_seconds"])
async def test_a_time_that_no_schedule_can_have_is_refused_with_the_fields_of_the_body(room, field, given):
    answer = await operator(room).post(ADMIN, json=ASKED | {"cron": None, "every_seconds": 60, field: given})
    bound = "at least 0" if given == -1 else "at most 3153600000"
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    assert answer.json()["detail"] == f"`{field}` must be a number of {bound}"
    assert answer.json()["remedy"].startswith("the fields are: name, project, sender, to, subject, body, ")
    assert " ack_required, catch_up, cron, " in answer.json()["remedy"]
    assert (await operator(room).get(ADMIN)).json()["schedules"] == []


async def test_a_person_pauses_resumes_and_sends_on_the_page(room, clock: ManualClock):
    await operator(room).post(ADMIN, json=ASKED)
    browser = room.browser()
    page = (await browser.get(PAGE)).text
    assert "standup &lt;b&gt;" in page
    assert "0 9 * * MON" in page
    fields = [(name, hidden(page, name)) for name in ("form_token", "name")]
    for word, seen in (("pause", "paused"), ("resume", "Pause"), ("trigger", "was sent.")):
        answer = await post(browser, PAGE, *fields, ("do", word))
        assert answer.status_code == 303
        assert seen in (await browser.get(answer.headers["location"])).text
    assert (await room.messages())[0].subject == "Plan"
    clock.advance(timedelta(days=7))
    assert await room.schedules.kept.submit_due() == 1


async def test_forms_without_token_or_about_another_project_change_nothing(room):
    await operator(room).post(ADMIN, json=ASKED)
    browser = room.browser()
    token = ("form_token", hidden((await browser.get(PAGE)).text, "form_token"))
    name = ("name", ASKED["name"])
    for pairs, status in (
        ((name, ("do", "trigger")), 403),
        ((token, ("name", "other"), ("do", "trigger")), 404),
        ((token, name, ("do", "burn")), 400),
    ):
        answer = await post(browser, PAGE, *pairs)
        assert answer.status_code == status, answer.text
    assert await room.messages() == []


@pytest.fixture
def fake() -> Iterator[FakePostroom]:
    told = {
        **{"name": "standup", "state": "active", "cron": None, "every_seconds": 1800.0, "zone": "UTC"},
        **{"to": ["Ada"], "subject": "Plan", "next_at": "2026-11-30T08:00:00.000Z", "last_error": None},
    }
    with FakePostroom() as running:
        running.admin["GET", "/admin/schedules"] = lambda _: {"schedules": [told]}
        running.admin["POST", "/admin/schedules"] = lambda _: told
        running.admin["GET", "/admin/schedules/one?name=standup"] = lambda _: told
        for word in ("pause", "resume"):
            running.admin["POST", f"/admin/schedules/{word}"] = lambda _: told
        running.admin["POST", "/admin/schedules/trigger"] = lambda _: {"message": 7}
        running.admin["DELETE", "/admin/schedules"] = lambda _: {"removed": True}
        yield running


@pytest.fixture
def run(fake: FakePostroom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Callable[..., object]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSTROOM_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("POSTROOM_URL", fake.url)

    def running(*words: str) -> tuple[int, str, str]:
        code = main(("schedules", *words))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return running


def test_the_commands_send_what_was_said_and_print_what_came(fake: FakePostroom, run, tmp_path: Path):
    said = ("--from", "Ana", "--to", "Ada", "--to", "Bo@x", "--subject", "Plan", "--body", "What?")
    code, out, err = run("add", "standup", *said, "--every", "30m", "--jitter", "90s", "--overlap", "skip")
    assert (code, out, err) == (0, "standup: next message at 2026-11-30T08:00:00.000Z\n", "")
    assert fake.seen[-1].body == {
        **{"name": "standup", "project": str(tmp_path), "sender": "Ana", "to": ["Ada", "Bo@x"]},
        **{"subject": "Plan", "body": "What?", "every_seconds": 1800, "zone": "UTC"},
        **{"missed": "once", "overlap": "skip", "jitter_seconds": 90, "replaces": False},
        "catch_up": False,
    }
    summary = (*said[:8], "--catch-up", "--every", "1d")
    assert run("add", "nine", *summary)[0] == 0
    assert (fake.seen[-1].body["body"], fake.seen[-1].body["catch_up"]) == ("", True)
    code, out, err = run("add", "nine", *said[:8], "--every", "1d")
    assert (code, out, "the message has no text" in err) == (2, "", True)
    for words, printed in (
        *((("list",), "every 30 minutes"), (("list", "--json"), '"schedules"')),
        *((("show", "standup"), "subject: Plan"), (("pause", "standup"), "Paused standup.")),
        *((("resume", "standup"), "standup: next message at"), (("trigger", "standup"), "Sent message 7.")),
        (("remove", "standup"), "Deleted standup."),
    ):
        code, out, err = run(*words)
        assert (code, printed in out, err) == (0, True, ""), (words, out)


@each_row("both", [(), ("--cron", "0 9 * * MON", "--every", "1h")])
def test_neither_or_both_of_line_and_interval_are_refused_in_words_of_the_command_line(
    fake: FakePostroom, run, both: tuple[str, ...]
):
    with pytest.raises(InvalidSchedule) as refused:
        refuse_unfit(
            new_schedule(
                "mail",
                "standup",
                {},
                cron=None,
                every=None,
                zone="UTC",
                missed="once",
                overlap="queue",
                jitter=timedelta(0),
            )
        )
    [operation] = [row for row in ADMINISTRATION if row.name == "add_schedule"]
    problem = to_problem(refused.value, operation).response("r")
    fake.admin["POST", "/admin/schedules"] = lambda _: Raw(400, bytes(problem.body))
    said = ("--from", "Ana", "--to", "Ada", "--subject", "Plan", "--body", "What?")
    code, out, err = run("add", "standup", *said, *both)
    assert (code, out) == (2, "")
    assert "pass either --cron, such as 0 9 * * MON, or --every" in err


def test_a_span_that_is_none_is_refused_before_anything_is_sent(fake: FakePostroom, run):
    said = ("--from", "Ana", "--to", "Ada", "--subject", "Plan", "--body", "What?")
    code, _, err = run("add", "standup", *said, "--every", "often")
    assert code == 2
    assert "not a duration" in err
    assert fake.seen == []

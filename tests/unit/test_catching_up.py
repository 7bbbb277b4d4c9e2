"""`catch_up`: the events of a project since a cursor, for a caller that was absent."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from mail_room import HARBOR, SHORE, Room, room_in_memory
from postroom.contracts.clock import iso
from postroom.contracts.errors import CursorAhead, CursorExpired, InvalidArgument
from postroom.contracts.runs import Usage
from postroom.contracts.waking import AskedQuestion, MessageRun
from postroom.mail.catching_up import MAX_ENTRIES_READ
from postroom.mail.context import Caller, token_hash
from postroom.stores.mail.access import MailWrites

room = room_in_memory
OPERATOR = Caller(operator=True)


async def caught_up(room: Room, caller: Caller = OPERATOR, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = await room.call("catch_up", caller=caller, **more)
    return found


async def test_it_names_the_new_messages_and_the_reserved_paths(room: Room) -> None:
    await room.open()
    await room.send("Ada", "Ben", subject="Lights", thread_id="lights")
    newest = await room.send("Ben", "Ada", subject="Re: Lights", thread_id="lights")
    recalled = await room.send("Cyd", "Ada", subject="Oops", thread_id="oops")
    await room.call("recall_message", sender_name="Cyd", message_id=recalled)
    await room.call("file_reservation_paths", agent_name="Ben", paths=["piers/**"])
    found = await caught_up(room)
    assert found["threads"] == [
        {
            "thread_id": "lights",
            "subject": "Re: Lights",
            "messages": 2,
            "newest_id": newest,
            "senders": ["Ben", "Ada"],
        }
    ]
    assert found["threads_in_all"] == 1
    assert found["reserved"] == [{"agent": "Ben", "path": "piers/**"}]
    assert found["counts"]["message.recalled"] == 1
    assert found["skipped"] == 0


async def test_it_names_only_paths_that_are_still_reserved(room: Room) -> None:
    await room.open()
    await room.call("add_task", agent_name="Ada", title="Light the pier", paths=["piers/**"])
    await room.call("claim_task", agent_name="Ben")
    await room.call("file_reservation_paths", agent_name="Ben", paths=["lamps.py"], ttl_seconds=60)
    await room.call("file_reservation_paths", agent_name="Cyd", paths=["docs/**"], ttl_seconds=7200)
    await room.call("file_reservation_paths", agent_name="Cyd", paths=["again.py"])
    await room.call("release_file_reservations", agent_name="Cyd", paths=["again.py"])
    assert len((await caught_up(room))["reserved"]) == 3
    await room.call("done_task", agent_name="Ben", task_id=1, epoch=1)
    room.clock.advance(timedelta(minutes=61))
    found = await caught_up(room)
    assert found["reserved"] == [{"agent": "Cyd", "path": "docs/**"}], (
        "expired entries come only with a change"
    )
    assert found["counts"]["reservation.made"] == 4
    await room.call("file_reservation_paths", agent_name="Cyd", paths=["again.py"])
    paths = [one["path"] for one in (await caught_up(room))["reserved"]]
    assert paths == ["again.py", "docs/**"]


async def test_the_next_summary_begins_where_this_one_ends(room: Room) -> None:
    await room.open()
    await room.send("Ada", "Ben")
    cursor = (await caught_up(room))["next"]
    assert (await caught_up(room, after=cursor))["events"] == 0
    await room.send("Ben", "Ada", subject="After lunch")
    later = await caught_up(room, after=cursor)
    assert [one["subject"] for one in later["threads"]] == ["After lunch"]
    assert later["next"] == cursor + 1


async def test_without_a_cursor_it_covers_the_last_hours(room: Room) -> None:
    await room.open()
    await room.send("Ada", "Ben", subject="Yesterday")
    room.clock.advance(timedelta(hours=25))
    await room.send("Ada", "Ben", subject="Today")
    assert [one["subject"] for one in (await caught_up(room))["threads"]] == ["Today"]
    assert len((await caught_up(room, hours=48))["threads"]) == 2


async def test_it_tells_the_state_of_each_run_and_what_runs_used(room: Room) -> None:
    await room.open()

    def work(tx: MailWrites) -> None:
        project = tx.project(HARBOR)
        ada = tx.agent(project.id, "Ada") if project else None
        assert ada is not None
        for run_id in ("well", "badly", "again", "asks", "stopped"):
            tx.begin_run(run_id, ada.id, 1)
        tx.end_run("well", now=2, usage=Usage(input_tokens=900, output_tokens=100, cost_micros=20_000))
        tx.end_run("badly", "failed", now=3, usage=Usage(cost_micros=5_000))
        tx.end_run("again", "failed", now=3)
        tx.end_run("stopped", "cancelled", now=3)
        tx.begin_run("again", ada.id, 4)
        tx.end_run("asks", "waiting", now=5, asked_at={"q1": 5})

    await room.store.write(work)
    found = await caught_up(room, after=0)
    assert found["runs"] == {"active": 1, "waiting": 1, "succeeded": 1, "failed": 1, "cancelled": 1}
    assert [one["run_id"] for one in found["failed"]] == ["badly"]
    assert [(one["question_id"], one["agent"]) for one in found["questions"]] == [("q1", "Ada")]
    assert found["spent"] == {"tokens": 1_000, "cost_micros": 25_000}
    await room.store.write(lambda tx: tx.begin_run("asks", 1, 6, answered=["q1"]))
    later = await caught_up(room, after=0)
    assert (later["questions"], later["answered"]) == ([], 1)


async def test_a_long_absence_is_summarised_by_its_newest_events(room: Room) -> None:
    await room.open()
    for part in range(5):
        paths = [f"{part}/{number}" for number in range(500)]
        await room.call("file_reservation_paths", agent_name="Ada", paths=paths)
    newest = (await caught_up(room))["next"]
    found = await caught_up(room, after=2)
    assert (found["events"], found["skipped"]) == (MAX_ENTRIES_READ, newest - MAX_ENTRIES_READ - 2)
    assert (await caught_up(room))["skipped"] == newest - MAX_ENTRIES_READ
    assert len(found["reserved"]) == 10


async def test_an_agent_reads_nothing_that_its_log_hides(room: Room) -> None:
    await room.open()
    await room.send("Ada", "Ben", subject="For Ben only")
    await room.mail.issue_token(HARBOR, "Cyd", token_hash("pra_cyd"))
    cyd = Caller(agent_token="pra_cyd")
    assert (await caught_up(room, cyd))["threads"] == []
    await room.send("Ada", "Cyd", subject="For Cyd")
    assert [one["subject"] for one in (await caught_up(room, cyd))["threads"]] == ["For Cyd"]


async def test_a_wrong_cursor_is_refused(room: Room) -> None:
    await room.open()
    await room.refused(CursorAhead, "catch_up", after=99)
    await room.store.write(lambda tx: tx.trim_log(1, keep=2, limit=9))
    await room.refused(CursorExpired, "catch_up", after=1)
    assert (await caught_up(room))["skipped"] == 0
    await room.refused(InvalidArgument, "catch_up", hours=0)
    await room.open(project=SHORE)
    assert (await caught_up(room, project_key=SHORE))["events"] == 4


def said(found: dict[str, Any], about: str) -> list[str]:
    return [one["text"] for one in found["sentences"] if one["about"] == about]


async def test_it_says_in_sentences_what_was_asked_decided_done_failed_and_changed(room: Room) -> None:
    await room.open()
    for title in ("Light the pier", "Paint", "Dig", "Check"):
        acceptance = "person" if title == "Check" else ""
        await room.call("add_task", agent_name="Ada", title=title, acceptance=acceptance)
    await room.call("claim_task", agent_name="Ben", task_id=1)
    await room.call("done_task", agent_name="Ben", task_id=1, epoch=1, commit="4f2a", message="It burns.")
    await room.call("claim_task", agent_name="Ben", task_id=2)
    await room.call("update_task", agent_name="Ben", task_id=2, epoch=1, state="blocked", reason="no paint")
    await room.call("claim_task", agent_name="Cyd", task_id=3)
    await room.call("claim_task", agent_name="Ben", task_id=4)
    await room.call("done_task", agent_name="Ben", task_id=4, epoch=1)
    await room.call("add_note", agent_name="Ben", subject="Test command", text="Run make quick.")
    await room.call("add_note", agent_name="Ada", subject="test command", text="Run make all.", replaces=[1])
    await room.call("file_reservation_paths", agent_name="Ada", paths=["docs/plan.md"])
    await room.send("Ada", "Ben", subject="Lights", thread_id="lights")
    await room.store.write(lambda tx: tx.note_branches(1, ["pier"], into="main", commit="a" * 40, now=2))
    found = await caught_up(room)
    assert said(found, "added") == [
        'Ada added task 1 "Light the pier".',
        'Ada added task 2 "Paint".',
        'Ada added task 3 "Dig".',
        'Ada added task 4 "Check".',
    ]
    assert said(found, "asked") == ['Ben asks a person to accept task 4 "Check".']
    assert said(found, "decided") == [
        'Ben added note 1 "Test command": "Run make quick.". It was replaced by note 2 at '
        f"{iso(room.clock.now())}.",
        'Ada added note 2 "test command": "Run make all.", in place of note 1.',
    ]
    assert said(found, "done") == [
        'Ben finished task 1 "Light the pier"; commit "4f2a"; it says "It burns.".'
    ]
    assert said(found, "failed") == ['Ben blocked task 2 "Paint": "no paint".']
    assert {
        'Branch "pier" was merged into "main".',
        'Cyd claimed task 3 "Dig".',
        'Ada reserved "docs/plan.md" and still holds it.',
    } <= set(said(found, "changed"))
    assert 'Ada wrote a message about "Lights" (thread "lights").' in said(found, "said")
    ids = {key for one in found["sentences"] for key in one}
    assert {"task_id", "note_id", "thread_id", "message_id"} <= ids


async def test_it_says_that_a_note_ended(room: Room) -> None:
    await room.open()
    for subject in ("Build", "Deploy"):
        await room.call("add_note", agent_name="Ben", subject=subject, text="Wait.")
    room.clock.advance(timedelta(minutes=5))
    await room.call("end_note", agent_name="Ada", note_id=1)
    ended, active = said(await caught_up(room), "decided")
    assert ended == f'Ben added note 1 "Build": "Wait.". It ended at {iso(room.clock.now())}.'
    assert active == 'Ben added note 2 "Deploy": "Wait.".'
    cursor = (await caught_up(room))["next"]
    await room.call("end_note", agent_name="Ada", note_id=2)
    assert said(await caught_up(room, after=cursor), "decided") == ['Ada ended note 2 "Deploy": "Wait.".']


async def test_it_says_why_runs_failed_what_they_asked_and_what_they_used(room: Room) -> None:
    await room.open()
    message_id = await room.send("Ben", "Ada")

    def work(tx: MailWrites) -> None:
        for run_id in ("well", "badly", "asks"):
            tx.begin_run(run_id, 1, 1)
        tx.end_run("well", now=2, usage=Usage(input_tokens=900, output_tokens=100, cost_micros=20_000))
        state = MessageRun(message_id=message_id, agent_id=1, run_id="badly", delivered_at=2)
        tx.put_message_run(state)
        tx.put_message_run(replace(state, ended_at=3, failure="no key is set"))
        tx.end_run("badly", "failed", now=3)
        tx.ask("asks", 1, AskedQuestion(id="q1", text="May I merge?"), 4)
        tx.end_run("asks", "waiting", now=5, asked_at={"q1": 5})

    await room.store.write(work)
    found = await caught_up(room, after=0)
    assert said(found, "asked") == ["Ada asks a person (question q1)."]
    assert said(found, "done") == ["Ada ended 1 run well."]
    assert said(found, "failed") == ['A run of Ada failed: "no key is set".']
    assert said(found, "spent") == ["Runs used 1,000 tokens and 0.02 USD."]


async def test_the_sentences_are_limited_and_quote_in_one_line_what_agents_wrote(room: Room) -> None:
    await room.open()
    for number in range(25):
        await room.call("add_task", agent_name="Ada", title=f'{number} "quoted" ' + "x" * 150)
    found = await caught_up(room)
    added = said(found, "added")
    assert (len(added), added[0]) == (11, "15 earlier ones are not listed.")
    assert added[1].startswith('Ada added task 16 "15 ')
    assert all(len(one) < 260 and one.count('"') == 2 for one in added[1:])


async def test_each_listed_task_has_its_title_whatever_happened_after_it_was_added(room: Room) -> None:
    await room.open()
    for number in range(120):
        await room.call("add_task", agent_name="Ada", title=f"Light pier {number}")
    for number in range(110):
        await room.call("claim_task", agent_name="Ben", task_id=number + 1)
    found = await caught_up(room, after=0)
    added = [one["text"] for one in found["sentences"] if one["about"] == "added"]
    assert added == [
        "110 earlier ones are not listed.",
        *(f'Ada added task {number + 1} "Light pier {number}".' for number in range(110, 120)),
    ]
    assert 'Ben claimed task 110 "Light pier 109".' in [one["text"] for one in found["sentences"]]

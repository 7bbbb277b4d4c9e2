"""The report of `postroom doctor` and the gauges on an application, with and without faults."""

import asyncio
import errno
import json
import math
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from application_room import Place, place
from conformance.promises.run_given import run
from postroom.app.check_results import MIN_FREE, told_of_descriptors, told_of_disk
from postroom.app.doctor import _channel
from postroom.app.health import _store
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import MissingExtra
from postroom.contracts.push import PushSubscription
from postroom.contracts.records import replace
from postroom.contracts.run_stores import RunQuery, ThreadCommit
from postroom.http_api.readiness import Check
from postroom.services.runners import RunnerService
from postroom.services.work import WorkService
from postroom.testing import ManualClock
from table_rows import each_row
from work_room import no_facts

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
PROJECT = "/projects/shop"


@pytest.fixture
def here(tmp_path: Path, clock: ManualClock) -> Iterator[Place]:
    with place(tmp_path / "data", clock) as found:
        yield found


async def test_a_fresh_application_is_well_and_says_what_it_cannot_know(here: Place) -> None:
    found = await here.operator.doctor()
    states = {one["name"]: one["state"] for one in found["checks"]}
    assert states == {
        **{"store writes": "ok", "store reads": "ok", "records": "ok", "messages": "ok", "sqlite": "ok"},
        **{"git": "ok", "backups": "unknown", "runs": "ok", "outbox": "ok", "runner": "ok", "push": "ok"},
        **{"log": "ok", "folders": "ok", "disk": "ok", "descriptors": "ok"},
    }
    assert found["ok"] is True
    assert all(one["remedy"] for one in found["checks"] if one["state"] != "ok")


async def test_the_age_of_the_newest_backup_is_told_and_that_one_is_overdue(here: Place) -> None:
    await here.application.backups.round()
    here.clock.advance(DAY)
    told = await here.finding("backups")
    assert (told["state"], "24 hours old" in told["detail"]) == ("ok", True)
    checks = (await here.operator.ready()).as_dict()["checks"]
    assert checks["backups"] == {"state": "ok", "age_ms": 86_400_000}
    here.clock.advance(2 * DAY)
    told = await here.finding("backups")
    assert (told["state"], "3 days old" in told["detail"], bool(told["remedy"])) == ("failed", True, True)
    checks = (await here.operator.ready()).as_dict()["checks"]
    assert checks["backups"] == {"state": "failed", "age_ms": 3 * 86_400_000}


async def test_a_record_of_a_newer_release_is_listed_until_it_can_be_read(here: Place) -> None:
    stores = here.application.runs.stores
    await stores.coordinator.commit(ThreadCommit(thread_id="t", run=(newer := run(stores))))

    def with_status(status: str) -> None:
        with closing(sqlite3.connect(here.application.settings.database)) as database, database:
            [[body]] = database.execute("SELECT body FROM runs WHERE run_id = ?", (newer.run_id,))
            after = json.dumps({**json.loads(body), "status": status})
            database.execute("UPDATE runs SET body = ? WHERE run_id = ?", (after, newer.run_id))

    with_status("paused_by_budget")
    await stores.threads.list_runs(RunQuery())
    told = await here.finding("records")
    assert told["state"] == "failed"
    for words in (f"run {newer.run_id}", "paused_by_budget", "cannot read 1 records"):
        assert words in told["detail"]
    assert "newest release" in told["remedy"]
    with_status("created")
    await here.operator.repair(full=False, dry_run=False)
    assert (await here.finding("records"))["state"] == "ok"


async def test_a_backup_that_failed_is_told_with_its_reason(here: Place) -> None:
    (here.application.settings.data_dir / "backups").write_text("in the way")
    await here.application.backups.round()
    told = await here.finding("backups")
    assert (told["state"], "is a file instead of a folder" in told["detail"]) == ("failed", True)
    checks = (await here.operator.ready()).as_dict()
    assert checks["checks"]["backups"] == {"state": "failed", "age_ms": None, "code": "store_read_only"}


async def test_a_timer_that_is_off_is_not_called_well(tmp_path: Path, clock: ManualClock) -> None:
    def opened() -> Any:
        return place(tmp_path / "data", clock, backup_interval=timedelta(0))

    manager = opened()
    here = await asyncio.to_thread(manager.__enter__)
    told = await here.finding("backups")
    assert (told["state"], "automatic backups are disabled" in told["detail"]) == ("unknown", True)
    await asyncio.to_thread(manager.__exit__, None, None, None)


async def test_a_browser_that_gets_no_notifications_is_a_fault_with_the_setting_to_look_at(
    here: Place,
) -> None:
    made = PushSubscription(
        id="one",
        endpoint="https://fcm.googleapis.com/x",
        **dict.fromkeys(("p256dh", "auth", "person", "form_token", "server_key"), "x"),
        **dict.fromkeys(("created_at", "ends_at", "seen_at"), 1),
    )
    store = here.application.store.store
    await store.write(lambda tx: tx.push.put(made))
    told = await here.finding("push")
    assert (told["state"], told["detail"]) == ("ok", "browsers that get notifications: 1")
    await store.write(
        lambda tx: tx.push.note_result("one", error="the push service answered with status 403")
    )
    told = await here.finding("push")
    assert (told["state"], "status 403" in told["detail"], "push_contact" in told["remedy"]) == (
        "failed",
        True,
        True,
    )
    await store.write(lambda tx: tx.push.put(replace(made, id="two", endpoint="https://push.example.org/x")))
    told = await here.finding("push")
    assert (told["state"], "push_services" in told["remedy"]) == ("failed", True)


async def test_runs_that_were_given_up_are_a_fault_with_the_command_that_shows_them(here: Place) -> None:
    await here.give_up("a", "the program ended with 1")
    told = await here.finding("runs")
    assert (told["state"], "1 dead_letter" in told["detail"]) == ("failed", True)
    assert "`postroom runs dead`" in told["remedy"]
    assert (await here.operator.doctor())["ok"] is False
    (shown,) = await WorkService(here.application.runs, here.application.mail, no_facts).dead()
    assert (shown["dispatch_id"], shown["error"]) == ("a", "the program ended with 1")


async def test_a_run_that_failed_in_a_chat_is_no_fault_for_the_chat_has_the_reason(here: Place) -> None:
    await here.give_up("a", "the key is not known", thread="chat/telegram/bot/t1")
    told = await here.finding("runs")
    assert (told["state"], "1 belong to chats, where the reason was shown" in told["detail"]) == ("ok", True)
    assert told["remedy"] == ""
    await here.operator.refresh_metrics()
    assert here.number("postroom_dead_letters") == 0
    await here.give_up("b", "the program ended with 1")
    told = await here.finding("runs")
    assert (told["state"], "1 belong to chats" in told["detail"]) == ("failed", True)
    await here.operator.refresh_metrics()
    assert here.number("postroom_dead_letters") == 1


async def test_the_run_that_waits_longest_is_told_with_the_reason(here: Place) -> None:
    await here.queue("later", available_at=here.clock.now() + 3_600_000)
    here.clock.advance(MINUTE)
    await here.queue("first")
    here.clock.advance(MINUTE)
    await here.queue("second")
    here.clock.advance(3 * MINUTE)
    told = await here.finding("runs")
    assert "run is run-first, for 4 minutes" in told["detail"]
    assert told["state"] == "failed"  # no worker claims runs in this application
    assert "no worker claims runs" in told["remedy"]
    here.clock.advance(timedelta(hours=2))
    longest = await here.application.runs.longest_waiting(here.clock.now())
    assert longest is not None
    assert longest.dispatch_id == "first"


async def test_a_run_that_the_server_claimed_and_does_not_execute_is_told_after_ten_seconds(
    here: Place,
) -> None:
    await here.queue("left")
    runs = here.application.runs
    row = await runs.stores.dispatches.load_dispatch("left")
    assert row is not None
    await runs.stores.dispatches.claim(row.thread_id, consumer=runs.mailbox.consumer_id, lease_ms=60_000)
    assert "not executed" not in (await here.finding("runs"))["detail"]
    here.clock.advance(timedelta(seconds=11))
    told = await here.finding("runs")
    assert (told["state"], "claimed by this server but not executed: run-left" in told["detail"]) == (
        "failed",
        True,
    )
    await runs.mailbox.release_unexecuted_claims()
    row = await runs.stores.dispatches.load_dispatch("left")
    assert row is not None
    assert (row.status, row.attempt_count) == (RunDispatchStatus.QUEUED, 0)


def program(folder: Path, name: str, *, mode: int = 0o755) -> Path:
    """Write a program that would tell if it were started."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\ntouch {folder}/started\n")
    path.chmod(mode)
    return path


@each_row(
    "runner, state, said",
    [
        ({"argv": ["tool", "--key", "x"], "env": {"PATH": "{bin}"}}, "ok", "{bin}/tool"),
        ({"argv": ["tool"], "env": {"PATH": "bin"}}, "ok", "{bin}/tool"),
        ({"argv": ["bin/tool"]}, "ok", "{bin}/tool"),
        ({"argv": ["{bin}/tool"]}, "ok", "{bin}/tool"),
        ({"argv": ["tool"]}, "failed", "'tool' was not found"),
        ({"argv": ["bin/plain"]}, "failed", "is not executable"),
        ({"argv": ["tool"], "cwd": "{bin}/gone"}, "failed", "is missing"),
        ({"argv": ["tool"], "cwd": "{bin}/tool"}, "failed", "is not a folder"),
        ({"recipe": "claude", "env": {"PATH": "{bin}"}}, "failed", "'claude' was not found"),
    ],
)
async def test_a_runner_is_looked_at_and_never_started(
    runner: dict[str, Any], state: str, said: str, here: Place, tmp_path: Path
) -> None:
    bin_folder = tmp_path / "bin"
    program(bin_folder, "tool")
    program(bin_folder, "plain", mode=0o644)
    mail = here.application.mail
    await mail.call("ensure_project", {"human_key": PROJECT})
    registered = {"project_key": PROJECT, "program": "p", "model": "m", "name": "Bo"}
    await mail.call("register_agent", registered)

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace("{bin}", str(bin_folder))
        if isinstance(value, list):
            return [filled(one) for one in value]
        return {name: filled(one) for name, one in value.items()} if isinstance(value, dict) else value

    declared = {"cwd": str(tmp_path), **filled(runner)}
    await RunnerService(mail, lambda runner: None).declare(PROJECT, "Bo", declared)
    found = await here.operator.doctor()
    (told,) = [one for one in found["checks"] if one["name"].startswith("runner ")]
    assert told["name"].startswith("runner Bo@")
    assert (told["state"], filled(said) in told["detail"]) == (state, True), told
    assert bool(told["remedy"]) == (state == "failed")
    assert not (bin_folder / "started").exists()


async def test_a_model_runner_without_the_sdk_is_a_fault_and_is_refused(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.runtime.openai.find_spec", lambda _name: None)
    mail = here.application.mail
    await mail.call("ensure_project", {"human_key": PROJECT})
    registered = {"project_key": PROJECT, "program": "p", "model": "m", "name": "Bo"}
    await mail.call("register_agent", registered)
    declared = {"kind": "model", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
    with pytest.raises(MissingExtra, match="requires openai"):
        await RunnerService(mail, here.application.executors.check).declare(PROJECT, "Bo", declared)
    await RunnerService(mail, lambda runner: None).declare(PROJECT, "Bo", declared)
    found = await here.operator.doctor()
    (told,) = [one for one in found["checks"] if one["name"].startswith("runner ")]
    assert (told["state"], "openai" in told["remedy"]) == ("failed", True), told


async def test_a_runner_that_does_not_read_back_is_a_fault(here: Place) -> None:
    await here.application.mail.call("ensure_project", {"human_key": PROJECT})
    registered = {"project_key": PROJECT, "program": "p", "model": "m", "name": "Bo"}
    await here.application.mail.call("register_agent", registered)
    await here.application.mail.set_runner(PROJECT, "Bo", '{"argv": []}')
    found = await here.operator.doctor()
    (told,) = [one for one in found["checks"] if one["name"].startswith("runner ")]
    assert told["state"] == "failed"


def test_descriptors_are_told_against_their_limit(subtests: pytest.Subtests) -> None:
    for used, most, state in [
        *((None, 100, "unknown"), (80, 100, "ok"), (81, 100, "failed"), (10_000, None, "ok")),
    ]:
        with subtests.test(used=used, most=most, state=state):
            told = told_of_descriptors(used, most)
            assert (told.state, bool(told.remedy)) == (state, state != "ok")


@each_row(
    "size, free, state",
    [
        (5, MIN_FREE, "ok"),
        (5, MIN_FREE - 1, "failed"),
        (MIN_FREE, 2 * MIN_FREE, "ok"),
        (MIN_FREE, 2 * MIN_FREE - 1, "failed"),
    ],
)
def test_a_disk_that_fills_is_a_fault(size: int, free: int, state: str, tmp_path: Path) -> None:
    database = tmp_path / "postroom.db"
    database.touch()
    os.truncate(database, size)  # takes no room
    told = told_of_disk(database, free_of=lambda _: free)
    assert (told.state, bool(told.remedy)) == (state, state != "ok")


def test_the_disk_of_a_database_that_is_not_there_is_seen_and_one_that_cannot_be_seen_is_unknown(
    tmp_path: Path,
) -> None:
    def unseen(_: Path) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    for database in (tmp_path / "postroom.db", tmp_path / "data" / "postroom.db"):
        told = told_of_disk(database, free_of=lambda _: MIN_FREE)
        assert (told.state, told.detail) == ("ok", f"{MIN_FREE} bytes are free")
        assert told_of_disk(database, free_of=unseen).state == "unknown"


def test_people_are_told_that_the_disk_is_full_or_rights_are_lacking_and_not_that_nothing_answers() -> None:
    for facts, words in (
        ({"code": "store_full"}, "the disk is full: nothing can be stored"),
        ({"code": "store_unavailable"}, "the store does not answer"),
        ({"code": "store_read_only", "lacking": ["UPDATE"]}, "lacks rights"),
    ):
        assert words in _store(Check(name="store", state="failed", facts=facts))


def test_a_channel_is_told_with_what_came_in_last(subtests: pytest.Subtests) -> None:
    for state, expected in [
        *(("connected", "ok"), ("connecting", "unknown"), ("reconnecting", "unknown"), ("failed", "failed")),
        ("stopped", "failed"),
    ]:
        with subtests.test(state=state, expected=expected):
            told = {
                **{"state": state, "since": 1_699_999_000_000, "inbound_at": None, "outbound_at": None},
                **{"error_code": None, "error": None},
            }
            silent = _channel("slack", told, 1_700_000_000_000)
            assert (silent.state, "no message has been received yet" in silent.detail) == (expected, True)
            assert f"{state} since 2023-11-14T21:56:40.000Z" in silent.detail
            heard = {**told, "inbound_at": 1_699_999_700_000, "error_code": "e_code", "error": "no route"}
            loud = _channel("slack", heard, 1_700_000_000_000)
            assert "5 minutes ago" in loud.detail
            assert "e_code: no route" in loud.detail


async def test_the_gauges_show_what_there_is_to_do(here: Place, tmp_path: Path) -> None:
    await here.operator.refresh_metrics()
    assert here.number("postroom_backup_age_seconds") == math.inf
    assert here.number("postroom_oldest_waiting_run_age_seconds") == 0
    mail = here.application.mail
    await mail.call("ensure_project", {"human_key": PROJECT})
    for name in ("Ada", "Bo"):
        registered = {"project_key": PROJECT, "program": "p", "model": "m", "name": name}
        await mail.call("register_agent", registered)
    await RunnerService(mail, lambda runner: None).declare(PROJECT, "Bo", {"argv": ["true"]})
    sent = {"project_key": PROJECT, "sender_name": "Ada", "to": ["Bo"], "subject": "s", "body_md": "b"}
    await mail.call("send_message", sent)
    await here.give_up("a", "no")
    await here.queue("b")
    await here.application.backups.round()
    here.clock.advance(MINUTE)
    await here.operator.refresh_metrics()
    shown = {
        **{"postroom_dead_letters": 1, "postroom_oldest_waiting_run_age_seconds": 60},
        **{"postroom_agents_with_runner": 1, "postroom_agents_executing": 0, "postroom_unread_messages": 1},
        "postroom_backup_age_seconds": 60,
    }
    assert {name: here.number(name) for name in shown} == shown
    assert here.number("postroom_mailbox_dispatch_depth", status="queued") == 1
    assert here.number("postroom_open_descriptors") > 3
    assert here.number("postroom_records", kind="unread") is None

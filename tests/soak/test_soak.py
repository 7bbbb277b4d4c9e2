"""A server that is killed under everything at once loses, doubles and hides nothing; and the books show it when one does.

`POSTROOM_SOAK_KILLS` is how often something is killed (10 by default); `make soak KILLS=2000` is the long one.
"""

import asyncio
import copy
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from soak.books import Findings, Sqlite, compare_answers, look
from soak.callers import Asked
from soak.killing import Soak, soak, unexpected
from soak.peers import Heard

KILLS = int(os.environ.get("POSTROOM_SOAK_KILLS", "10"))
pytestmark = [pytest.mark.long, pytest.mark.timeout(300 + 10 * KILLS)]

IN_THE_DATABASE = {
    "a message is gone": ("lost", "DELETE FROM messages WHERE id = (SELECT max(id) FROM messages WHERE body_md LIKE 'Say%')"),
    "a message is there twice": (
        "doubled",
        "INSERT INTO messages (project_id, sender_id, subject, body_md, created_ts) SELECT project_id, sender_id, subject,"
        " body_md, created_ts FROM messages WHERE body_md LIKE 'Say%' LIMIT 1",
    ),
    "an inbox has a gap": ("history", "UPDATE recipients SET seq = 1000 WHERE seq = 2"),
    "an event is gone": ("history", "DELETE FROM event_scopes WHERE seq = 2"),
    "a chat message is gone": (
        "lost",
        "DELETE FROM inbound_messages WHERE inbound_id = (SELECT max(inbound_id) FROM inbound_messages)",
    ),
    "a chat message was handed to nobody": (
        "lost",
        "UPDATE inbound_messages SET status = 'handed_over', is_open = 1 WHERE inbound_id = (SELECT max(inbound_id)"
        " FROM inbound_messages)",
    ),
}  # fmt: skip
"""Faults: which finding each must be, and how it comes about."""
IN_THE_NOTES: dict[str, tuple[str, Callable[[Asked], Asked]]] = {
    "never taken": ("silent", lambda one: replace(one, is_accepted=False)),
    "without an answer": ("silent", lambda one: replace(one, heard=Heard(), told="")),
    "answered twice": ("doubled", lambda one: replace(one, heard=Heard({**one.heard.texts, "again": one.nonce}))),
    "answered with another's answer": ("lost", lambda one: replace(one, heard=Heard({"answer": "re: nonce-of-another"}))),
}  # fmt: skip


async def test_nothing_is_lost_doubled_or_silent_and_a_planted_fault_is_found(tmp_path: Path) -> None:
    said: list[str] = []
    done = await soak(
        Soak(kills=KILLS, sessions=10, look_every=max(KILLS // 2, 1)), tmp_path / "soak", said.append
    )
    assert list(done.findings) == []
    assert done.kills + done.programs + done.commands >= KILLS
    assert {one.channel for one in done.asked if one.heard.texts} == {
        "mail",
        "command",
        "telegram",
        "webhook",
        "api",
    }
    assert all("IS NOT" not in line for line in said)
    found, states = await look(Sqlite(tmp_path / "soak" / "data" / "postroom.db"), done.asked)
    assert (list(found), states["finished"]) == ([], states["accepted"])
    await refuse_faults_in_the_database(tmp_path, done.asked)
    refuse_faults_in_the_notes(done.asked)


async def refuse_faults_in_the_database(tmp_path: Path, asked: list[Asked]) -> None:
    for number, (fault, (kind, statement)) in enumerate(IN_THE_DATABASE.items()):
        folder = tmp_path / f"fault-{number}"
        await asyncio.to_thread(shutil.copytree, tmp_path / "soak" / "data", folder)
        with closing(sqlite3.connect(folder / "postroom.db")) as rows, rows:
            assert rows.execute(statement).rowcount > 0, fault
        found, _ = await look(Sqlite(folder / "postroom.db"), asked)
        assert vars(found)[kind], fault


def refuse_faults_in_the_notes(asked: list[Asked]) -> None:
    number = next(number for number, one in enumerate(asked) if one.heard.texts)
    for fault, (kind, changed) in IN_THE_NOTES.items():
        notes, found = copy.copy(asked), Findings()
        notes[number] = changed(notes[number])
        compare_answers(notes, found)
        assert vars(found)[kind], fault


def test_a_traceback_in_the_log_is_a_finding_unless_a_program_was_killed_or_the_model_slow() -> None:
    log = [
        "ready",
        "x Traceback ... CommandKilled: it was killed",
        "x Traceback ... postroom.contracts.errors.InferenceTimeout: silent",
        "y Traceback ... KeyError",
    ]
    assert unexpected(log) == log[3:]

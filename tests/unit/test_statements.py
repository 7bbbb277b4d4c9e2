"""Every statement of the mail room prepares, is used, and finds its rows by an index where it matters."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib import resources

import pytest

from postroom.stores.sqlite.migrate import shipped_migrations, split_statements
from postroom.stores.sqlite.statements import STATEMENTS as MAIL
from postroom.stores.sqlite.statements import load_statements

STATEMENTS = {**MAIL, **load_statements("project_log")}

HOT = (
    "project_by_path",
    "project_by_slug",
    "project_by_alias",
    "agent_named",
    "agents_named",
    "agents_by_id",
    "agent_by_token",
    "touch_agent",
    "touch_reservations",
    "message",
    "messages",
    "next_inbox_seq",
    "recipients_named",
    "recipients",
    "inbox_newest",
    "inbox_after",
    "inbox_unread_newest",
    "inbox_unread_after",
    "inbox_events",
    "unread_count",
    "thread",
    "thread_tail",
    "thread_size",
    "threads",
    "mark_read",
    "mark_acked",
    "mark_recalled",
    "unannounced",
    "directed_unread",
    "mark_announced",
    "client_session",
    "bind_client_session",
    "end_client_session",
    "nudges",
    "set_nudges",
    "drop_attachments",
    "drop_orphan_blobs",
    "attachments",
    "live_reservations",
    "live_reservations_near",
    "reservations_held",
    "expired_reservations",
    "contacts",
    "answer",
    "with_runner",
    "handlings",
    "answering_run",
    "finish_outbox",
    "fail_outbox",
    "recipient_kind",
    "read_mark",
    "acked_mark",
    "record",
    "record_of_agents",
    "projects_reached",
    "project_events",
    "log_bounds",
    "letters_written",
    "letters_received",
    "trim_log",
)
MAY_BE_SCANNED = {"json_each", "CONSTANT", "homes"}
"""Lists that the caller gave, rows that stand in the statement, and the three projects of an entry at most."""


@pytest.fixture(scope="module")
def empty() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        for step in shipped_migrations():
            for statement in split_statements(step.sql):
                connection.execute(statement)
        yield connection


def parameters(statement: str) -> dict[str, object] | list[object]:
    named = re.findall(r":([a-z_]+)", statement)
    if named:
        return dict.fromkeys(named)
    numbered = re.findall(r"\?(\d)", statement)
    return [None] * (max(map(int, numbered)) if numbered else statement.count("?"))


def plan(connection: sqlite3.Connection, name: str) -> list[str]:
    rows = connection.execute(f"EXPLAIN QUERY PLAN {STATEMENTS[name]}", parameters(STATEMENTS[name]))
    return [row[3] for row in rows]


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_prepares_against_the_newest_schema(empty: sqlite3.Connection, name: str) -> None:
    steps = empty.execute(f"EXPLAIN {STATEMENTS[name]}", parameters(STATEMENTS[name])).fetchall()
    assert steps


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_is_used(name: str) -> None:
    folder = resources.files("postroom.stores.sqlite")
    modules = [entry for entry in folder.iterdir() if entry.name.endswith(".py")]
    users = [entry.name for entry in modules if f'"{name}"' in entry.read_text(encoding="utf-8")]
    assert users


def test_no_statement_is_asked_for_that_does_not_exist() -> None:
    folder = resources.files("postroom.stores.sqlite")
    asked = {
        found
        for entry in folder.iterdir()
        if entry.name.endswith(".py")
        for found in re.findall(r'(?:SQL|STATEMENTS)\["([a-z_]+)"\]', entry.read_text(encoding="utf-8"))
    }
    assert len(asked) > len(STATEMENTS) / 2
    assert asked <= STATEMENTS.keys()


@pytest.mark.parametrize("name", HOT)
def test_a_frequent_statement_reads_no_table_from_end_to_end(empty: sqlite3.Connection, name: str) -> None:
    scanned = {match[1] for step in plan(empty, name) if (match := re.match(r"SCAN (\w+)", step))}
    assert scanned <= MAY_BE_SCANNED, plan(empty, name)


@pytest.mark.parametrize(
    "name", ["inbox_newest", "inbox_after", "inbox_events", "thread", "thread_tail", "threads"]
)
def test_a_page_is_read_in_its_order(empty: sqlite3.Connection, name: str) -> None:
    assert not [step for step in plan(empty, name) if "ORDER BY" in step]


def test_a_message_is_marked_without_going_through_its_inbox(empty: sqlite3.Connection) -> None:
    for name in ("mark_read", "mark_acked", "mark_announced"):
        assert any("message_id=? AND agent_id=?" in step for step in plan(empty, name)), name

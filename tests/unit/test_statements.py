"""Every statement is used, and finds its rows on SQLite by an index if that matters.

`tests/meta/test_plans.py` checks the plans of PostgreSQL.
"""

import re
import sqlite3
from collections.abc import Iterator, Set
from contextlib import closing
from importlib import resources
from pathlib import Path

import pytest

from postroom.stores.sql_transaction import Dialect, statements
from postroom.stores.sqlite.migrate import migrate
from table_rows import each_row

STATEMENTS = statements("sqlite")
HOT = re.findall(
    r"\w+",
    """
    project_named agent_addressed received agent_named agents_named agents_by_id agent_by_token
    touch_agent touch_reservations message messages recipients_named recipients inbox_newest inbox_after
    inbox_unread_newest inbox_unread_after inbox_events unread_count thread thread_tail thread_size threads
    newest_messages sent_messages newest_reservations active_agents mark_read mark_acked mark_recalled
    unannounced directed_unread mark_announced client_session bind_client_session end_client_session nudges
    set_nudges drop_attachments drop_orphan_blobs attachments live_reservations live_reservations_near
    reservations_held expired_reservations contacts answer with_runner message_runs answering_run newest_report
    waiting_runs open_runs recipient_kind read_mark acked_mark projects_concerned projects_reached messages_written
    messages_received file_views due_file_views put_file_view note_file_change mark_file_views_told
    purge_file_views
""",
)
"""The frequent statements of mail. Each statement of runs and chats is such a statement."""
GIVEN = {"json_each", "CONSTANT"}
"""Lists from the caller, and rows in the statement itself."""
OF_CHATS = {"json_each", "unreadable_rows", "chat_requests"}
OF_RUNS = {
    *("json_each", "CONSTANT", "found", "due", "walked", "counted", "one", "(subquery", "unreadable_rows"),
    *("run_commands", "above", "below", "t"),  # what is asked of runs at work: a few rows
    "spent",  # one row, which is written
    *("asked", "latest", "started"),  # the entries of a list, one run each
    "n",  # the orders that a poll for effects looks at: a few of each target
}
OF_A_THREAD = {"n", "s", "standing", "t", "each_way"}
"""At most so many messages of a thread, and their readers."""
SMALL = {
    *(
        f"run_dispatches_{one}"
        for one in ("claimed", "queue", "urgent", "due", "unreconciled", "run", "again")
    ),
    *(
        "runs_asked",
        "runs_holding",
        "runs_waiting",
        "runs_unnumbered",
        "runs_open_of_thread",
        "outbox_dead",
        "run_spending_asked",
    ),
    *("inbound_messages_open", "inbound_messages_ended"),
}
"""Indexes of open rows, and of ended messages without their texts, which may be scanned from end to end."""
IN_ORDER = [
    f"{area}.{name}"
    for area, names in (
        ("dispatches", "next_due of_thread queued_of_thread ended_by_change unreconciled due_threads"),
        ("dispatches", "next_due_at queued_threads purge retried"),
        ("outbox", "dead_letters due"),
        ("threads", "threads threads_of_parent threads_without_parent threads_of_resource latest_runs"),
        ("threads", "asked_last asked_since run_places runs waiting_runs open_runs_of_thread messages"),
        ("threads", "unnumbered numbered asked_in answered_in overdue"),
        ("threads", "messages_newest messages_of_run messages_of_run_newest pending threads_with_pending"),
        ("events", "events"),
        ("chats", "inbound_by_id open_inbound open_inbound_of_session sessions threads people files"),
        ("chats", "people_of_platform"),
        ("mail", "inbox_newest inbox_after thread thread_tail threads project_messages newest_messages"),
        ("mail", "sent_messages newest_reservations inbox_events"),
    )
    for name in names.split()
]
"""Statements that stop at a limit and must not sort all there is before."""


def of(*areas: str) -> list[str]:
    return [name for name in STATEMENTS if name.partition(".")[0] in areas]


@pytest.fixture(scope="module")
def empty() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, Path(":memory:"), now=0)
        yield connection


def plan(connection: sqlite3.Connection, name: str) -> list[str]:
    found = STATEMENTS[name]
    rows = connection.execute(f"EXPLAIN QUERY PLAN {found.text}", dict.fromkeys(found.parameters))
    return [row[3] for row in rows]


def scanned(connection: sqlite3.Connection, name: str, small: Set[str] = SMALL) -> set[str]:
    """Return what a statement reads from end to end, but for small indexes."""
    steps = (
        re.match(r"SCAN ([^ ]+?)(?:-\d+\))?(?: USING (?:COVERING )?INDEX (\w+)|$| )", step)
        for step in plan(connection, name)
    )
    return {step[1] for step in steps if step and step[2] not in small}


def test_every_statement_of_mail_and_chats_is_used_and_there() -> None:
    source = "".join(
        one.read_text(encoding="utf-8") for one in Path(str(resources.files("postroom.stores"))).rglob("*.py")
    )
    asked = set(re.findall(r'"((?:mail|project_log|chats)\.[a-z_]+)"', source))
    every = {  # those that restore are one a table
        name
        for name in STATEMENTS | statements("postgres")
        if name.startswith(("mail.", "project_log.", "chats.")) and not name.startswith("mail.restore_")
    }
    assert asked == every


@each_row(
    "name, allowed",
    [
        *((name, GIVEN) for name in of("mail", "project_log") if name.partition(".")[2] in HOT),
        *((name, OF_CHATS) for name in of("chats")),
        *((name, OF_RUNS) for name in of("dispatches", "threads", "events", "outbox")),
    ],
)
def test_no_frequent_statement_reads_a_table_from_end_to_end(
    empty: sqlite3.Connection, name: str, allowed: set[str]
) -> None:
    if name == "dispatches.count_by_status":  # walks what is open, and of what has ended a bounded part
        steps = " ".join(plan(empty, name))
        assert "SEARCH run_dispatches USING COVERING INDEX run_dispatches_ended (status=?)" in steps
        assert "SCAN run_dispatches USING COVERING INDEX run_dispatches_ended" not in steps
        return
    assert scanned(empty, name) <= allowed, plan(empty, name)


def test_participants_are_counted_in_what_was_found_of_a_thread(empty: sqlite3.Connection) -> None:
    assert scanned(empty, "mail.thread_participants", frozenset()) <= OF_A_THREAD
    assert any("messages_thread" in step for step in plan(empty, "mail.thread_participants"))


@each_row("name", IN_ORDER)
def test_a_limit_ends_the_search(empty: sqlite3.Connection, name: str) -> None:
    assert not [step for step in plan(empty, name) if "ORDER BY" in step]


def test_a_message_is_marked_without_going_through_its_inbox(empty: sqlite3.Connection) -> None:
    for name in ("mail.mark_read", "mail.mark_acked", "mail.mark_announced"):
        assert any("message_id=? AND agent_id=?" in step for step in plan(empty, name)), name


@each_row("dialect", ["sqlite", "postgres"])
def test_each_part_of_a_file_stands_in_its_statements(dialect: Dialect) -> None:
    texts = [one.text for one in statements(dialect).values()]
    assert not [text for text in texts if "{part" in text]
    for file in resources.files("postroom.stores").joinpath("sql").iterdir():
        source = file.read_text(encoding="utf-8")
        parts = re.findall(r"^-- part (\w+)$", source, re.MULTILINE)
        assert sorted(parts) == sorted(set(re.findall(r"\{part (\w+)\}", source))), file.name

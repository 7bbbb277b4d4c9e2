"""Every statement of the mail room is used, and finds its rows by an index if that matters."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib import resources

import pytest

from postroom.stores.migrations import shipped_migrations
from postroom.stores.sql_transaction import Dialect, Statement, statements
from postroom.stores.sqlite.connection import add_functions
from postroom.stores.sqlite.migrate import split_statements
from table_rows import each_row


def of_mail(dialect: Dialect) -> dict[str, Statement]:
    """Return the statements of the mail room by their headings."""
    found = statements(dialect).items()
    areas = ("mail.", "project_log.")
    return {name.partition(".")[2]: one for name, one in found if name.startswith(areas)}


STATEMENTS = {name: one.text for name, one in of_mail("sqlite").items()}
PARAMETERS = {name: one.parameters for name, one in of_mail("sqlite").items()}
EVERY = of_mail("sqlite") | of_mail("postgres")

HOT = re.findall(
    r"\w+",
    """
    project_named agent_addressed received agent_named agents_named agents_by_id agent_by_token
    touch_agent touch_reservations message messages recipients_named recipients inbox_newest inbox_after
    inbox_unread_newest inbox_unread_after inbox_events unread_count thread thread_tail thread_size threads
    newest_messages sent_messages newest_reservations active_agents mark_read mark_acked mark_recalled
    unannounced directed_unread mark_announced client_session bind_client_session end_client_session nudges
    set_nudges drop_attachments drop_orphan_blobs attachments live_reservations live_reservations_near
    reservations_held expired_reservations contacts answer with_runner message_runs answering_run tells_last
    waiting_runs recipient_kind read_mark acked_mark projects_concerned projects_reached messages_written
    messages_received file_views due_file_views put_file_view note_file_change mark_file_views_told
    purge_file_views
""",
)
MAY_BE_SCANNED = {"json_each", "CONSTANT"}
"""Lists from the caller, and rows in the statement itself."""


@pytest.fixture(scope="module")
def empty() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        add_functions(connection)
        for step in shipped_migrations("sqlite"):
            for statement in split_statements(step.sql):
                connection.execute(statement)
        yield connection


def plan(connection: sqlite3.Connection, name: str) -> list[str]:
    rows = connection.execute(f"EXPLAIN QUERY PLAN {STATEMENTS[name]}", dict.fromkeys(PARAMETERS[name]))
    return [row[3] for row in rows]


def test_every_statement_is_used_and_there() -> None:
    stores = resources.files("postroom.stores")
    modules = [*stores.joinpath("mail").iterdir(), stores.joinpath("sqlite", "engine.py")]
    source = "".join(one.read_text(encoding="utf-8") for one in modules if one.name.endswith(".py"))
    asked = {name for _, name in re.findall(r'"(mail|project_log)\.([a-z_]+)"', source)}
    restored = {name for name in EVERY if name.startswith("restore_")}  # one a table
    assert asked | restored == EVERY.keys()


@each_row("name", HOT)
def test_a_frequent_statement_reads_no_table_from_end_to_end(empty: sqlite3.Connection, name: str) -> None:
    scanned = {match[1] for step in plan(empty, name) if (match := re.match(r"SCAN (\w+)", step))}
    assert scanned <= MAY_BE_SCANNED, plan(empty, name)


def test_participants_are_counted_in_what_was_found_of_a_thread(empty: sqlite3.Connection) -> None:
    steps = plan(empty, "thread_participants")
    scanned = {match[1] for step in steps if (match := re.match(r"SCAN (\w+)", step))}
    assert scanned <= {"n", "s", "standing", "t", "each_way"}, (
        "these are at most so many messages, and their readers"
    )
    assert any("messages_thread" in step for step in steps)


IN_ORDER = re.findall(
    r"\w+",
    """
    inbox_newest inbox_after inbox_events thread thread_tail threads project_messages newest_messages
    sent_messages newest_reservations
""",
)


@each_row("name", IN_ORDER)
def test_a_page_is_read_in_its_order(empty: sqlite3.Connection, name: str) -> None:
    assert not [step for step in plan(empty, name) if "ORDER BY" in step]


def test_a_message_is_marked_without_going_through_its_inbox(empty: sqlite3.Connection) -> None:
    for name in ("mark_read", "mark_acked", "mark_announced"):
        assert any("message_id=? AND agent_id=?" in step for step in plan(empty, name)), name


@each_row("dialect", ["sqlite", "postgres"])
def test_each_part_of_a_file_stands_in_its_statements(dialect: Dialect) -> None:
    texts = [one.text for one in statements(dialect).values()]
    assert not [text for text in texts if "{part" in text]
    for file in resources.files("postroom.stores").joinpath("sql").iterdir():
        source = file.read_text(encoding="utf-8")
        parts = re.findall(r"^-- part (\w+)$", source, re.MULTILINE)
        assert sorted(parts) == sorted(set(re.findall(r"\{part (\w+)\}", source))), file.name

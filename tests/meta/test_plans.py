"""How PostgreSQL finds rows: by an index, whatever it believes of the tables when a statement is first planned."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from postroom.stores.postgres.connection import SESSION, array, together, written_together
from postroom.stores.postgres.connection import columns as columns_of
from postroom.stores.postgres.sql_transaction import OF_ONE_THREAD
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.sql_transaction import Statement, statements

pytestmark = pytest.mark.long

Session = psycopg.Connection[Any]
ROWS = 20_000
ONLY_THESE = {
    "projects": 20,
    "login_codes": 20,
    "ended_sessions": 20,
    "leases": 20,
    "agents": 400,
    "runners": 400,
    "chat_addresses": 400,
    "agent_nudges": 400,
    "unreadable_rows": 20,
    "push_subscriptions": 20,
    "push_notices": 400,
}
"""Tables that stay small; a column that is not named below has another value in each row."""
VALUES = {
    **dict.fromkeys(("project_id",), "i % 20 + 1"),
    **dict.fromkeys(("agent_id", "sender_id", "from_id"), "i % 400 + 1"),
    "to_id": "i / 400 + 1",
    "message_id": "i / 2 + 1",
    "thread_id": "'t' || i % 4000",
    "run_id": "'r' || i",
    "dispatch_id": "'d' || i",
    "is_open": "CASE WHEN i % 1000 < 2 THEN 1 ELSE 0 END",
    "status": "CASE i % 1000 WHEN 0 THEN 'Queued' WHEN 1 THEN 'Claimed' ELSE 'Acked' END",
    "topic": "CASE i % 1000 WHEN 0 THEN 'wake' ELSE 'done' END",
    "lane": "CASE i % 1000 WHEN 0 THEN 'archive' ELSE 'done' END",
    "claim_token": "NULL",
    "lease_until": "CASE i % 1000 WHEN 1 THEN i END",
}
BY_TYPE = {
    "bigint": "i",
    "integer": "i",
    "smallint": "i",
    "double precision": "i",
    "text": "'x' || i",
    "boolean": "i % 2 = 0",
    "bytea": "'x'::bytea",
    "tsvector": "to_tsvector('simple', 'w' || i)",
}
READS_ALL = {
    *("mail.backlog", "chats.requests", "store.identity"),
    *("merging.size", "merging.move_aliases", "merging.move_tokens"),  # an operator merges projects, once
}
"""Count, or list few rows, for a page that a person reads."""
SCANS_IF_FREE = {
    *("chats.counts", "chats.purge", "chats.sessions", "dispatches.count_by_status"),
    *("chats.unused_pieces", "merging.archived_message"),
    "dispatches.forget_commands",  # what an owner that died has left, which are few
    "mail.tallies",  # up to a bound, for the list of projects
    "timeline.attempts_since",  # up to a bound, for the first page
    "mail.project_ids",  # SQLite's search alone asks it
    *("mail.counts", "mail.purge_answers", "mail.purge_client_sessions", "notes.purge_given"),
    "mail.reservations_by_id",
    "mail.purge_file_views",
    *("threads.open_runs", "threads.runs", "threads.threads", "project_log.projects_reached"),
    "mail.index_threads",  # of all messages, once, of a store that was just filled
    "threads.idle",  # once an hour, for threads that are cleared
    "threads.threads_left_over",  # once a sweep, in pages
    *(
        "mail.recipients",
        "mail.project_named",
        "mail.agent_addressed",
    ),  # beside a table of a few hundred rows
}
"""Statements that count, clear, or list for a page, where the planner may choose by itself."""


@pytest.fixture(scope="module")
def empty(request: pytest.FixtureRequest) -> Iterator[Session]:
    with new_schema(request, "plans_of_none") as session:
        session.execute("ANALYZE")
        yield session


@pytest.fixture(scope="module")
def filled(request: pytest.FixtureRequest) -> Iterator[Session]:
    with new_schema(request, "plans_of_many") as session:
        fill(session)
        session.execute("ANALYZE")
        yield session


@contextmanager
def new_schema(request: pytest.FixtureRequest, schema: str) -> Iterator[Session]:
    dsn = request.getfixturevalue("postgres_dsn")
    PostgresStore.open(dsn, schema=schema).close()
    with psycopg.connect(dsn, autocommit=True) as session:
        for name, value in {**SESSION, "search_path": schema, "statement_timeout": "0"}.items():
            session.execute("SELECT set_config(%s, %s, false)", (name, value))
        yield session
        session.execute(f"DROP SCHEMA {schema} CASCADE")


def columns(session: Session) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    rows = session.execute(
        "SELECT c.table_name, column_name, data_type FROM information_schema.columns c"
        " JOIN information_schema.tables t USING (table_schema, table_name)"
        " WHERE table_schema = current_schema AND table_type = 'BASE TABLE' AND is_generated = 'NEVER' AND is_identity = 'NO'"
    )
    for table, column, kind in rows.fetchall():
        if table != "schema_migrations":
            found.setdefault(table, []).append((column, kind))
    return found


def fill(session: Session) -> None:
    """Add as many rows as after some weeks; the content of rows and rules does not matter."""
    session.execute("SET session_replication_role = replica")
    rules = "SELECT conrelid::regclass::text, conname FROM pg_constraint WHERE contype = 'c' AND connamespace = current_schema::regnamespace"
    for table, rule in session.execute(rules).fetchall():
        session.execute(f'ALTER TABLE {table} DROP CONSTRAINT "{rule}"')
    for table, those in columns(session).items():
        names = ", ".join(f'"{name}"' for name, _ in those)
        values = ", ".join(value(name, kind) for name, kind in those)
        count = ONLY_THESE.get(table, ROWS)
        session.execute(
            f"INSERT INTO {table} ({names}) SELECT {values} FROM generate_series(1, {count}) AS i"
            " ON CONFLICT DO NOTHING"
        )


def value(name: str, kind: str) -> str:
    found = VALUES.get(name, BY_TYPE[kind])
    return BY_TYPE[kind] if kind == "bigint" and "'" in found else found


def scanning(session: Session) -> set[str]:
    """Return the statements whose generic plan reads a table that grows from end to end."""
    found = set()
    for name, statement in statements("postgres").items():
        if name.startswith("outline.") or statement.text.startswith(("SAVEPOINT", "ROLLBACK", "RELEASE")):
            continue
        for text in (statement.text, *(one.text for one in for_several(session, statement))):
            [[[plan]]] = session.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {text}").fetchall()
            if any(scanned(plan["Plan"])):
                found.add(name)
    return found


def for_several(session: Session, statement: Statement) -> list[Statement]:
    """Return the statement by which several ask or write the same, if there is one."""
    is_written = statement.name in OF_ONE_THREAD
    if not is_written and not statement.text.startswith("SELECT"):
        return []
    make = written_together if is_written else together
    several = make(statement, tuple(types_of(session, statement)))
    assert several is not None or not is_written
    return [] if several is None else [several]


def types_of(session: Session, statement: Statement) -> list[int]:
    session.execute(f"PREPARE look AS {statement.text}")
    [[types]] = session.execute(
        "SELECT parameter_types::oid[]::bigint[] FROM pg_prepared_statements WHERE name = 'look'"
    ).fetchall()
    session.execute("DEALLOCATE look")
    return [int(one) for one in types]


def scanned(node: dict[str, Any]) -> Iterator[str]:
    if node["Node Type"] == "Seq Scan" and node["Relation Name"] not in ONLY_THESE:
        yield node["Relation Name"]
    for within in node.get("Plans", ()):
        yield from scanned(within)


def test_a_statement_that_was_planned_on_empty_tables_uses_an_index(empty: Session) -> None:
    """Such a plan is kept until the server analyses the tables again, by when they may be large."""
    assert scanning(empty) <= READS_ALL


def test_a_statement_uses_an_index_on_tables_with_many_rows(filled: Session) -> None:
    assert scanning(filled) <= READS_ALL


def test_frequent_statements_need_no_settings_of_the_planner_on_tables_with_many_rows(
    filled: Session,
) -> None:
    with filled.transaction():
        for method in ("seqscan", "hashjoin", "mergejoin"):
            filled.execute(f"SET LOCAL enable_{method} = on")
        assert scanning(filled) <= READS_ALL | SCANS_IF_FREE


def test_no_statement_starts_more_processes_on_tables_with_many_rows(filled: Session) -> None:
    wanted = ("parallel_setup_cost", "parallel_tuple_cost", "min_parallel_index_scan_size")
    with filled.transaction(force_rollback=True):
        for name in wanted:  # as if the tables were so large that the planner wants to
            filled.execute(f"SET LOCAL {name} = 0")
        plans = {
            name: filled.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {statement.text}").fetchall()
            for name, statement in statements("postgres").items()
            if statement.text.startswith("SELECT") and not name.startswith("outline.")
        }
    assert [name for name, plan in plans.items() if "Gather" in str(plan)] == []


def test_who_asks_together_finds_what_each_finds_alone(filled: Session) -> None:
    seen = 0
    for statement in statements("postgres").values():
        for several in for_several(filled, statement) if statement.name not in OF_ONE_THREAD else ():
            types = types_of(filled, statement)
            values = [[given(kind, which) for kind in types] for which in range(3)]
            alone = [found(filled, statement, types, one) for one in values]
            dealt: list[list[tuple[Any, ...]]] = [[] for _ in values]
            for row in found(filled, several, [None] * len(types), columns_of(values)):
                dealt[row[-1] - 1].append(row[:-1])
            if "ORDER BY" not in statement.text:
                alone, dealt = (
                    [sorted(rows, key=repr) for rows in alone],
                    [sorted(rows, key=repr) for rows in dealt],
                )
            assert dealt == alone, statement.name
            seen += any(alone)
    assert seen > 60, "the values are those of rows"


def given(kind: int, which: int) -> bytes:
    """Return values that rows have, of a type by its number; lists have two."""
    texts, numbers = [b"t%d" % (which + 2), b"r%d" % (which + 2)], [b"%d" % (which + 2), b"%d" % (which + 9)]
    return {1009: array(texts), 1016: array(numbers), 25: texts[0], 20: numbers[0]}[kind]


def found(
    session: Session, statement: Statement, types: list[int | None], values: list[bytes]
) -> list[tuple[Any, ...]]:
    text = re.sub(r"\$(\d+)", lambda match: f"%({match[1]})s", statement.text.replace("%", "%%"))
    given = {str(place): value.decode() for place, value in enumerate(values, start=1)}
    names = {20: "bigint", 25: "text", 1009: "text[]", 1016: "bigint[]"}
    for place, kind in enumerate(types, start=1):
        if kind is not None:
            text = text.replace(f"%({place})s", f"%({place})s::{names[kind]}")
    return session.execute(text.encode(), given).fetchall()


def indexes(node: dict[str, Any], table: str) -> Iterator[str]:
    if node.get("Relation Name") == table and node["Node Type"] != "ModifyTable":
        yield node.get("Index Name", "none")
    for within in node.get("Plans", ()):
        yield from indexes(within, table)


def test_who_looks_for_due_work_reads_the_runs_that_hold_others_and_not_all_open_ones(
    filled: Session,
) -> None:
    """It is done at each poll; with 20,000 open runs it took three seconds on a busy machine."""
    looks = ("due_threads", "due_threads_of_tenant", "due_threads_of_nobody", "next_due_at")
    for name in looks:
        text = statements("postgres")[f"dispatches.{name}"].text
        [[[plan]]] = filled.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {text}").fetchall()
        assert set(indexes(plan["Plan"], "runs")) == {"runs_holding"}, name


def test_a_poll_passes_over_the_runs_that_are_delayed(filled: Session) -> None:
    """With 100,000 delayed runs, a poll that used another index read 40,000 blocks and took 220 ms."""
    text = statements("postgres")["dispatches.due_first"].text
    [[[plan]]] = filled.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {text}").fetchall()
    assert list(indexes(plan["Plan"], "run_dispatches")).count("run_dispatches_due") >= 2


def test_a_claim_on_a_thread_reads_the_first_of_its_queue_and_does_not_sort_all(filled: Session) -> None:
    def methods(node: dict[str, Any]) -> Iterator[str]:
        yield node["Node Type"]
        for within in node.get("Plans", ()):
            yield from methods(within)

    statement = statements("postgres")["dispatches.next_due"]
    with filled.transaction(force_rollback=True):
        filled.execute(
            "UPDATE run_dispatches SET thread_id = 't' || priority % 3, status = 'Queued', is_open = 1,"
            " created_at = hashtext(dispatch_id), priority = 128"
        )
        filled.execute("ANALYZE run_dispatches")
        for one in (statement, *for_several(filled, statement)):
            [[[plan]]] = filled.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {one.text}").fetchall()
            assert "Sort" not in set(methods(plan["Plan"]))
            assert "run_dispatches_queue" in set(indexes(plan["Plan"], "run_dispatches"))


def test_who_asks_for_one_conversations_queue_reads_its_own_entries_and_not_all_that_is_queued(
    filled: Session,
) -> None:
    """As long as few are queued, any index of queued rows looks as good; with an old snapshot it keeps all former rows."""
    of_one = {"run_dispatches_queue", "run_dispatches_of_thread", "run_dispatches_claimed"}
    asks = ("next_due", "queue", "stale_queue", "queued_of_thread", "queue_of_thread", "count_queued", "hold")
    with filled.transaction(force_rollback=True):
        filled.execute("UPDATE run_dispatches SET status = 'Acked', is_open = 0 WHERE status = 'Queued'")
        filled.execute("ANALYZE run_dispatches")
        for name in asks:
            statement = statements("postgres")[f"dispatches.{name}"]
            for one in (statement, *for_several(filled, statement)):
                [[[plan]]] = filled.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {one.text}").fetchall()
                assert set(indexes(plan["Plan"], "run_dispatches")) <= of_one, name


def test_who_asks_for_messages_by_their_ids_reads_those_and_not_the_whole_conversation(
    empty: Session, filled: Session
) -> None:
    """Each run does; on the thread of a long conversation it took longer with each message."""
    for session in (empty, filled):
        for name in ("named_messages", "committed"):
            statement = statements("postgres")[f"threads.{name}"]
            for one in (statement, *for_several(session, statement)):
                [[[plan]]] = session.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {one.text}").fetchall()
                assert set(indexes(plan["Plan"], "run_messages")) == {"run_messages_id"}, name

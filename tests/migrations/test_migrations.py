"""From any former schema to the newest: in order, whole or not at all, with a copy taken before.

After a change of the schema, write the snapshot with `python tests/migrations/test_migrations.py` and read the difference.
"""

import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from postroom.contracts.errors import SchemaTooNew, StoreCorrupt, StoreError, StoreFull
from postroom.stores.migrations import Migration, shipped_migrations
from postroom.stores.sqlite import SqliteStore
from postroom.stores.sqlite.connection import connect
from postroom.stores.sqlite.migrate import migrate, split_statements

NOW = 1_700_000_000_000
HERE = Path(__file__).parent
SNAPSHOT = HERE / "schema.snapshot.sql"

FIRST = Migration(
    version=1,
    name="first",
    sql="""
CREATE TABLE cups (id INTEGER PRIMARY KEY, colour TEXT);
INSERT INTO cups (colour) VALUES ('blue');
""",
)
SECOND = Migration(
    version=2, name="second", sql="ALTER TABLE cups ADD COLUMN size INTEGER NOT NULL DEFAULT 3;"
)
BROKEN = Migration(
    version=2,
    name="broken",
    sql="""
ALTER TABLE cups ADD COLUMN size INTEGER;
UPDATE cups SET colour = 'red';
INSERT INTO plates VALUES (1);
""",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "postroom.db"


def run(path: Path, *steps: Migration, now: int = NOW) -> list[int]:
    with closing(connect(path)) as connection:
        return migrate(connection, path, now=now, steps=list(steps))


def cups(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM cups").fetchall()


def ledger(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(
            "SELECT version, name, checksum, applied_at FROM schema_migrations"
        ).fetchall()


def backups(path: Path) -> list[Path]:
    return sorted(path.parent.glob("*.bak*"))


def schema_of(path: Path) -> str:
    """Return what a database consists of, in the order of names, the search index's own tables left out."""
    query = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT GLOB ? ORDER BY type, name"
    with closing(sqlite3.connect(path)) as connection:
        return "".join(f"{row[0]};\n\n" for row in connection.execute(query, ("messages_fts_*",)))


def newest_schema(path: Path) -> str:
    run(path, *shipped_migrations("sqlite"))
    return schema_of(path)


def test_the_shipped_steps_lead_to_the_recorded_schema(path: Path) -> None:
    assert newest_schema(path) == SNAPSHOT.read_text(encoding="utf-8"), (
        "the schema is not the recorded one; if meant, run: python tests/migrations/test_migrations.py"
    )


def test_the_shipped_steps_are_numbered_without_gaps() -> None:
    steps = shipped_migrations("sqlite")
    assert [step.version for step in steps] == list(range(1, len(steps) + 1))
    assert all(step.sql.strip() for step in steps)


def test_steps_are_applied_once_in_order_and_recorded(path: Path) -> None:
    assert run(path, FIRST) == [1]
    assert run(path, FIRST, SECOND, now=NOW + 1) == [2]
    assert run(path, FIRST, SECOND, now=NOW + 2) == []
    assert cups(path) == [(1, "blue", 3)]
    assert ledger(path) == [(1, "first", FIRST.checksum, NOW), (2, "second", SECOND.checksum, NOW + 1)]


def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    run(path, FIRST, SECOND)
    before = path.read_bytes()
    with pytest.raises(SchemaTooNew, match="schema 2, but this release supports up to 1") as refused:
        run(path, FIRST)
    assert refused.value.remedy
    assert path.read_bytes() == before
    assert backups(path) == []


def test_a_store_refuses_a_newer_schema_and_gives_the_file_back(path: Path) -> None:
    SqliteStore.open(path).close()
    newest = shipped_migrations("sqlite")[-1].version
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("INSERT INTO schema_migrations VALUES (?, 'later', 'x', 1)", (newest + 1,))
    for _ in range(2):
        with pytest.raises(SchemaTooNew):
            SqliteStore.open(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM schema_migrations WHERE version > ?", (newest,))
    SqliteStore.open(path).close()


def test_a_step_that_was_changed_afterwards_is_refused(path: Path) -> None:
    run(path, FIRST)
    changed = Migration(version=1, name="first", sql=FIRST.sql + "\n")
    with pytest.raises(StoreCorrupt, match="schema step 1"):
        run(path, changed, SECOND)
    assert [row[0] for row in ledger(path)] == [1]
    assert backups(path) == []


def test_a_step_that_fails_in_the_middle_leaves_the_former_schema(path: Path) -> None:
    run(path, FIRST)
    before = schema_of(path)
    with pytest.raises(StoreError):
        run(path, FIRST, BROKEN)
    assert schema_of(path) == before
    assert cups(path) == [(1, "blue")]
    assert [row[0] for row in ledger(path)] == [1]
    assert run(path, FIRST, SECOND, now=NOW + 1) == [2]
    first = Migration(version=1, name="broken", sql=FIRST.sql + "\nINSERT INTO plates VALUES (1);")
    with pytest.raises(StoreError):
        run(empty := path.with_name("empty.db"), first)
    assert "cups" not in schema_of(empty)
    assert run(empty, FIRST) == [1]


@contextmanager
def process(program: str, *arguments: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program during this test, and kill it at its end."""
    child = subprocess.Popen(
        [sys.executable, str(HERE / program), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def line_from(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def test_a_step_killed_in_the_middle_leaves_the_former_schema(path: Path) -> None:
    run(path, FIRST)
    before = schema_of(path)
    first, waiting = path.with_name("first.sql"), path.with_name("waiting.sql")
    first.write_text(FIRST.sql, encoding="utf-8")
    waiting.write_text(f"{SECOND.sql}\nUPDATE cups SET colour = wait();", encoding="utf-8")
    with process("migrating_process.py", path, first, waiting) as child:
        assert line_from(child) == "in the middle"
    assert schema_of(path) == before
    assert cups(path) == [(1, "blue")]
    assert run(path, FIRST, SECOND, now=NOW + 1) == [2]
    assert cups(path) == [(1, "blue", 3)]


def test_a_copy_is_made_before_an_existing_database_is_changed(path: Path) -> None:
    run(path, FIRST)
    assert backups(path) == []
    run(path, FIRST, SECOND, now=NOW + 1)
    (backup,) = backups(path)
    assert backup.name == f"postroom.db.before-0002.{NOW + 1}.bak"
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert cups(backup) == [(1, "blue")]
    assert [row[0] for row in ledger(backup)] == [1]
    assert run(backup, FIRST) == []
    run(path, FIRST, SECOND, now=NOW + 2)
    assert [copy.name for copy in backups(path)] == [backup.name]


def test_without_its_copy_no_step_is_applied(path: Path) -> None:
    run(path, FIRST)
    blocker = path.with_name(f"postroom.db.before-0002.{NOW}.bak")
    blocker.mkdir()
    with pytest.raises(StoreError):
        run(path, FIRST, SECOND)
    assert cups(path) == [(1, "blue")]


def test_a_full_disk_while_migrating_is_typed_and_undone(path: Path) -> None:
    run(path, FIRST)
    large = Migration(
        version=2, name="large", sql="CREATE TABLE jugs (x);\nINSERT INTO jugs VALUES (zeroblob(999999));"
    )
    with closing(connect(path)) as connection:
        connection.execute("PRAGMA max_page_count = 20")
        with pytest.raises(StoreFull):
            migrate(connection, path, now=NOW, steps=[FIRST, large])
        assert not connection.in_transaction
    assert "jugs" not in schema_of(path)


def test_two_processes_at_once_migrate_once(path: Path) -> None:
    with process("opening_process.py", path) as one, process("opening_process.py", path) as two:
        assert sorted([line_from(one), line_from(two)]) == ["held", "opened"]
    assert [row[0] for row in ledger(path)] == [step.version for step in shipped_migrations("sqlite")]


def test_the_statements_of_a_step_are_read_one_by_one() -> None:
    script = """-- A remark; with a semicolon.
CREATE TABLE a (x TEXT DEFAULT ';'); -- and one behind

CREATE TRIGGER t AFTER INSERT ON a BEGIN
  UPDATE a SET x = 'one;';
  UPDATE a SET x = 'two';
END;
-- The last may lack its end.
INSERT INTO a VALUES (1)
"""
    statements = list(split_statements(script))
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in statements:
            connection.execute(statement)
        assert connection.execute("SELECT x FROM a").fetchall() == [("two",)]
    assert len(statements) == 3
    assert list(split_statements("-- only a remark\n\n")) == []


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        SNAPSHOT.write_text(newest_schema(Path(folder) / "postroom.db"), encoding="utf-8")

"""A data folder of a store on PostgreSQL whose address was lost, or is that of another database."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest

from e2e.running import RunningServer, postroom

pytestmark = pytest.mark.long

CONFIGURATION = 78


@contextmanager
def a_database(dsn: str) -> Iterator[str]:
    """Make an empty database, and give its address with a password."""
    name = f"mail_{uuid4().hex}"
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(f"CREATE DATABASE {name}")
        try:
            parts = urlsplit(dsn)
            place = f"{parts.username}:hidden-word@{parts.hostname}:{parts.port}"
            yield parts._replace(netloc=place, path=f"/{name}").geturl()
        finally:
            session.execute(f"DROP DATABASE {name} WITH (FORCE)")


def files(folder: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith((".lock", ".owner.json"))
    }


def test_a_data_folder_of_a_store_on_postgresql_starts_on_no_new_store(dsn: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with a_database(dsn) as mail, a_database(dsn) as empty:
        with RunningServer(folder, "--database-url", mail):
            pass
        before = files(folder)
        for flags in ([], ["--database-url", empty]):
            refused = postroom(folder, "up", "--port", "0", *flags)
            told = " ".join(refused.stderr.split())
            assert refused.returncode == CONFIGURATION, told
            assert "hidden-word" not in told
            place = mail.rpartition("@")[2]
            assert f"belongs to the store of postgresql://{place}, schema postroom" in told
            for way in ("database_url", "postroom up --new-store"):
                assert way in told
            for other in ("postroom restore", "rebuild database", "pg_restore"):
                assert other not in told, "nothing is lost but the address"
            assert files(folder) == before, "nothing was written"
        looked = postroom(folder, "doctor")
        assert looked.returncode == 1
        assert "belongs to the store of postgresql://" in " ".join(looked.stdout.split())
        with psycopg.connect(empty) as session:
            [[made]] = session.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'postroom'")
        assert made == 0, "nothing was made there"
        with RunningServer(folder, "--database-url", mail):
            pass
        with RunningServer(folder, "--new-store"):
            pass
        assert (folder / "postroom.db").exists()


def test_whoever_looks_at_a_database_that_is_not_the_right_one_makes_nothing_there(
    dsn: str, tmp_path: Path
) -> None:
    config = tmp_path / "config" / "postroom" / "config.toml"
    config.parent.mkdir(parents=True)
    with a_database(dsn) as empty:
        config.write_text(f'database_url = "{empty}"\n')
        postroom(tmp_path / "data", "support-bundle", "--output", str(tmp_path / "bundle.tar.gz"))
        assert (tmp_path / "bundle.tar.gz").exists()
        postroom(tmp_path / "data", "doctor")
        with psycopg.connect(empty) as session:
            [[made]] = session.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'postroom'")
        assert made == 0


def test_a_store_that_is_reached_under_another_name_is_the_same(dsn: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with a_database(dsn) as mail:
        with RunningServer(folder, "--database-url", mail):
            pass
        with RunningServer(folder, "--database-url", mail.replace("127.0.0.1", "localhost")):
            pass
        assert "localhost" in (folder / "store.json").read_text()

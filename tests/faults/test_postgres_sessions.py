"""How long a session waits: postroom's time-outs, and shorter ones from PostgreSQL's standard settings."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

import psycopg
import pytest

from postroom.contracts.errors import ConfigError, StoreUnavailable
from postroom.stores.postgres.connection import SESSION, Address, Connection
from postroom.stores.postgres.errors import login_error

TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
OURS = ["25s", "2s", "10s"]


def timeouts(connection: Connection) -> list[str]:
    """Return the settings of a session."""
    asked = [connection.send(f"SHOW {name}") for name in TIMEOUTS]
    connection.wait()
    return [str(answer.rows[0][0]) for answer in asked]


@contextmanager
def session_of(dsn: str, *, pooled: bool = False, **settings: str) -> Iterator[Connection]:
    direct = dsn if pooled else ""
    address = Address(dsn=dsn, schema="postroom", direct_dsn=direct, settings=settings)
    with closing(Connection(address)) as connection:
        yield connection


@pytest.fixture
def role(postgres_dsn: str) -> Iterator[str]:
    name = f"hurried_{os.getpid()}"
    with psycopg.connect(postgres_dsn, autocommit=True) as session:
        session.execute(f"CREATE ROLE {name} LOGIN")
        yield name
        session.execute(f"DROP ROLE {name}")


def test_without_settings_our_own_hold(postgres_dsn: str) -> None:
    with session_of(postgres_dsn) as connection:
        assert timeouts(connection) == OURS


@pytest.mark.parametrize(
    ("asked", "held"),
    [
        (("3s", "100ms", "1500ms"), ["3s", "100ms", "1500ms"]),
        (("1min", "1h", "1d"), OURS),
        (("0", "0", "0"), OURS),
    ],
    ids=["shorter", "longer", "none"],
)
@pytest.mark.parametrize("how", ["address", "variable", "role", "role behind a pooler"])
def test_a_shorter_time_out_holds_and_a_longer_one_does_not(
    how: str,
    asked: tuple[str, ...],
    held: list[str],
    postgres_dsn: str,
    role: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dsn = postgres_dsn.replace("postgres@", f"{role}@")
    options = [f"-c {name}={value}" for name, value in zip(TIMEOUTS, asked, strict=True)]
    if how == "address":
        dsn += "?options=" + "%20".join(one.replace(" ", "%20").replace("=", "%3D") for one in options)
    elif how == "variable":
        monkeypatch.setenv("PGOPTIONS", " ".join(options))
    else:
        with psycopg.connect(postgres_dsn, autocommit=True) as session:
            for name, value in zip(TIMEOUTS, asked, strict=True):
                session.execute(f"ALTER ROLE {role} SET {name} = '{value}'")
    with session_of(dsn, pooled="pooler" in how) as connection:
        connection.begin()
        assert timeouts(connection) == held


def test_what_takes_as_long_as_it_takes_has_its_own_time_out_all_the_same(postgres_dsn: str) -> None:
    dsn = postgres_dsn + "?options=-c%20statement_timeout%3D3s"
    with session_of(dsn, statement_timeout="0") as connection:
        assert timeouts(connection)[0] == "0"


def test_no_other_setting_of_a_session_gives_way(postgres_dsn: str) -> None:
    with session_of(
        postgres_dsn + "?options=-c%20enable_seqscan%3Don%20-c%20search_path%3Dpublic"
    ) as connection:
        asked = connection.send("SELECT current_setting('enable_seqscan'), current_setting('search_path')")
        connection.wait()
        assert asked.rows[0] == (SESSION["enable_seqscan"], '"postroom"')


@pytest.mark.parametrize(("how", "seconds"), [("address", 2), ("variable", 2), ("longer", 3)])
def test_who_does_not_answer_a_login_is_given_up_after_connect_timeout_at_the_latest(
    how: str, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        dsn = f"postgresql://u@127.0.0.1:{deaf.getsockname()[1]}/mail"
        if how == "variable":
            monkeypatch.setenv("PGCONNECT_TIMEOUT", str(seconds))
        else:
            dsn += f"?connect_timeout={'2' if how == 'address' else '60'}"
        address = Address(dsn=dsn, schema="s", connect_within=timedelta(seconds=3))
        with pytest.raises(StoreUnavailable, match=f"did not answer as PostgreSQL within {seconds} s"):
            Connection(address)


def test_a_connect_timeout_that_is_no_number_is_a_mistake_in_the_address(postgres_dsn: str) -> None:
    with pytest.raises(ConfigError):
        Connection(Address(dsn=f"{postgres_dsn}?connect_timeout=soon", schema="s"))


def test_a_pooler_that_takes_no_options_is_told_with_where_to_set_time_outs() -> None:
    error = login_error(
        'connection to server at "db", port 6432 failed: FATAL:  unsupported startup parameter: options'
    )
    assert isinstance(error, ConfigError)
    assert "ALTER ROLE" in (error.remedy or "")

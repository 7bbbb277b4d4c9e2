"""Settings of PostgreSQL itself: a limit of connections, a standby, an old release, TLS and passwords by its variables."""

import asyncio
import os
import pwd
import shutil
import socketserver
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest

from e2e.commands import run_here
from e2e.running import RunningServer, plain_environment
from e2e.test_server_on_postgres import (
    CONFIGURATION,
    TEMPORARY,
    Command,
    readiness,
    refused,
    write_by_a_real_client,
)
from pooler import a_pooler
from postgres_server import PostgresServer, is_given
from postroom.stores.postgres.store import PostgresStore
from store_kinds import POOLED, refuse_missing

pytestmark = pytest.mark.long

TABLES = "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES"
SEQUENCES = "USAGE ON ALL SEQUENCES"


@pytest.fixture
def here(tmp_path: Path) -> Command:
    return partial(run_here, environment=plain_environment(tmp_path))


def test_a_limit_of_connections_that_is_reached_is_told_as_that(
    postgres_dsn: str, tmp_path: Path, here: Command
) -> None:
    with psycopg.connect(postgres_dsn, autocommit=True) as session:
        session.execute("DROP ROLE IF EXISTS few")
        session.execute("CREATE ROLE few LOGIN CONNECTION LIMIT 0")
    url = postgres_dsn.replace("postgres@", "few:hunter2@")
    refused(
        url,
        TEMPORARY,
        "raise the server's max_connections, the user's or database's CONNECTION LIMIT",
        tmp_path,
        here,
    )


def test_a_standby_is_told_as_one(tmp_path: Path, here: Command) -> None:
    refuse_missing("postgres")
    if is_given():
        pytest.skip("the server of TEST_DATABASE_URL has no standby of ours")
    settings = {"wal_level": "replica", "max_wal_senders": "4"}
    with PostgresServer(settings=settings) as primary:
        primary.start()
        with PostgresServer(settings=settings, standby_of=primary) as standby:
            standby.start()
            refused(standby.dsn, CONFIGURATION, "this server is a standby or read-only", tmp_path, here)


def test_a_server_that_is_too_old_is_told_with_the_oldest_that_would_do(tmp_path: Path) -> None:
    """A fake: the first words of an old server, as the protocol has them."""

    class Old(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1_000)
            status = b"server_version\x0013.22\x00"
            self.request.sendall(b"R\x00\x00\x00\x08\x00\x00\x00\x00")
            self.request.sendall(b"S" + (len(status) + 4).to_bytes(4, "big") + status)
            self.request.sendall(b"Z\x00\x00\x00\x05I")
            self.request.recv(1_000)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Old) as old:
        threading.Thread(target=old.serve_forever, daemon=True).start()
        url = f"postgresql://u:hunter2@127.0.0.1:{old.server_address[1]}/mail?sslmode=disable"
        refused(url, CONFIGURATION, "PostgreSQL 13 is too old", tmp_path)
        old.shutdown()


@pytest.fixture
def certificate(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A certificate of 127.0.0.1 that signs itself, and its key, for the user that poolers run as."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate")
    folder = Path("/tmp") / f"postroom-tls-{os.getpid()}"
    folder.mkdir(mode=0o755)
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    words = ["openssl", "req", "-new", "-x509", "-days", "2", "-nodes", "-subj", "/CN=127.0.0.1"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(key, nobody.pw_uid, nobody.pw_gid)
    yield certificate, key
    shutil.rmtree(folder)


def test_tls_and_the_password_are_had_by_the_variables_of_postgresql(
    postgres_dsn: str, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    """A real PgBouncer is what asks for them: the PostgreSQL of the tests was built without TLS."""
    refuse_missing(POOLED)
    users = certificate[0].with_name("users")
    users.write_text('"postgres" "hunter2"\n')
    settings = {
        "pool_mode": "session",
        "default_pool_size": 20,
        "auth_type": "scram-sha-256",
        "auth_file": users,
        "client_tls_sslmode": "require",
        "client_tls_cert_file": certificate[0],
        "client_tls_key_file": certificate[1],
    }
    schema = {"POSTROOM_DATABASE_SCHEMA": f"tls_{os.getpid()}"}
    with a_pooler(postgres_dsn, settings) as address:
        tls = {"PGSSLMODE": "verify-full", "PGSSLROOTCERT": str(certificate[0])}
        environment = {**plain_environment(tmp_path), **schema, **tls, "PGPASSWORD": "hunter2"}
        with RunningServer(tmp_path / "served", "--database-url", address, environment=environment) as server:
            assert readiness(server) == ("ok", None)
            assert "hunter2" not in server.log()

        def told(words: str, variables: Mapping[str, str]) -> None:
            run = partial(run_here, environment={**plain_environment(tmp_path), **schema, **variables})
            refused(address, CONFIGURATION, words, tmp_path, run)

        told("correct the user and the password", tls)
        told("correct the user and the password", {**tls, "PGPASSWORD": "wrong"})
    with psycopg.connect(postgres_dsn, autocommit=True) as session:
        session.execute(f"DROP SCHEMA {schema['POSTROOM_DATABASE_SCHEMA']} CASCADE")


@contextmanager
def a_guest(dsn: str, *rights: str) -> Iterator[tuple[str, str]]:
    """Make a schema, and a user with some rights to its tables; give the user's address and the schema's name."""
    name = f"lent_{os.getpid()}"
    PostgresStore.open(dsn, schema=name).close()
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(f"CREATE ROLE {name} LOGIN; GRANT USAGE ON SCHEMA {name} TO {name}")
        for right in rights:
            session.execute(f"GRANT {right} IN SCHEMA {name} TO {name}")
        session.execute(f"CREATE TABLE {name}.of_somebody_else (any_value text)")
        yield dsn.replace("postgres@", f"{name}:hunter2@"), name
        session.execute(f"DROP SCHEMA {name} CASCADE; DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_user_without_a_right_to_the_tables_is_refused_with_what_to_grant(
    postgres_dsn: str, tmp_path: Path
) -> None:
    for rights, told in (
        (["SELECT ON ALL TABLES"], "DELETE, INSERT, UPDATE, USAGE on "),
        (["INSERT, UPDATE, DELETE ON ALL TABLES", SEQUENCES], "SELECT on "),
        ([TABLES], "USAGE on "),
    ):
        with a_guest(postgres_dsn, *rights) as (url, name):
            run = partial(
                run_here, environment={**plain_environment(tmp_path), "POSTROOM_DATABASE_SCHEMA": name}
            )
            refused(url, CONFIGURATION, f"the user {name} lacks {told}", tmp_path, run)
            grant = "; ".join(
                f'GRANT {right} IN SCHEMA "{name}" TO "{name}"' for right in (TABLES, SEQUENCES)
            )
            refused(url, CONFIGURATION, grant, tmp_path, run)


def test_a_user_with_no_more_than_these_rights_serves(postgres_dsn: str, tmp_path: Path) -> None:
    with a_guest(postgres_dsn, TABLES, SEQUENCES) as (url, name):
        environment = {**plain_environment(tmp_path), "POSTROOM_DATABASE_SCHEMA": name}
        url += "?connect_timeout=3&options=-c%20lock_timeout%3D100ms"
        with RunningServer(tmp_path / "served", "--database-url", url, environment=environment) as server:
            assert readiness(server) == ("ok", None)
            asyncio.run(write_by_a_real_client(server, "2026", "lamp"))
            assert "warning" not in server.log()


def test_a_pooler_with_fewer_sessions_than_a_server_keeps_is_told_as_that(
    postgres_dsn: str, tmp_path: Path
) -> None:
    refuse_missing(POOLED)
    schema = f"few_{os.getpid()}"
    environment = {**plain_environment(tmp_path), "POSTROOM_DATABASE_SCHEMA": schema}
    run = partial(run_here, environment={**environment, "PGCONNECT_TIMEOUT": "2"})
    PostgresStore.open(postgres_dsn, schema=schema).close()
    for sessions in (2, 7):  # of 7 what a server opens first finds its own, and what it opens later does not
        with a_pooler(postgres_dsn, {"pool_mode": "session", "default_pool_size": sessions}) as address:
            refused(address, TEMPORARY, "eight sessions for each server", tmp_path, run)
    short = {"pool_mode": "session", "default_pool_size": 2, "query_wait_timeout": 1}
    with a_pooler(postgres_dsn, short) as address:
        refused(
            address, TEMPORARY, "no session was free within the pooler's query_wait_timeout", tmp_path, run
        )
    with a_pooler(postgres_dsn, {"pool_mode": "session", "max_client_conn": 2}) as address:
        refused(address, TEMPORARY, "a pooler's max_client_conn", tmp_path, run)
    with a_pooler(postgres_dsn, {"pool_mode": "session", "default_pool_size": 8}) as address:
        flags = ("--database-url", address)
        with RunningServer(tmp_path / "served", *flags, environment=environment) as server:
            assert readiness(server) == ("ok", None)
    with psycopg.connect(postgres_dsn, autocommit=True) as session:
        session.execute(f"DROP SCHEMA {schema} CASCADE")

"""A program that a server has started ends before another server starts it again, whatever becomes of the first.

Two servers on one PostgreSQL, with separate data folders, as on separate machines.
"""

import fcntl
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import psycopg
import pytest

from e2e.running import RunningServer, plain_environment

PATIENCE = 120.0
PROGRAM = "exec 9> lock; trap '' TERM; flock 9; echo $$ >> begun; while true; do sleep 300; done"
"""It works for longer than any lease, holds a lock as long as any process of it exists, and ignores SIGTERM."""
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def servers(postgres_dsn: str, tmp_path: Path) -> Iterator[list[RunningServer]]:
    a_schema = f"programs_{os.getpid()}"
    given = {"POSTROOM_DATABASE_URL": postgres_dsn, "POSTROOM_DATABASE_SCHEMA": a_schema}
    with ExitStack() as stack:
        started = []
        for name in ("one", "two"):
            environment = {**plain_environment(tmp_path), **given}
            server = RunningServer(tmp_path / name, environment=environment)
            started.append(stack.enter_context(server))
        yield started
        for server in started:
            server.kill()
    with psycopg.connect(postgres_dsn, autocommit=True) as session:
        session.execute(f"DROP SCHEMA {a_schema} CASCADE")


def asked(server: RunningServer, yard: Path) -> None:
    """Give an agent work that takes longer than a lease."""
    yard.mkdir()
    with server.line() as line:
        line.tool("ensure_project", human_key=str(yard))
        for name in ("Ada", "Echo"):
            line.tool("register_agent", project_key=str(yard), program="p", model="m", name=name)
        told = {"project": str(yard), "agent": "Echo", "runner": {"argv": ["/bin/sh", "-c", PROGRAM]}}
        answer = line.request("PUT", "/admin/runners", body=json.dumps(told).encode(), headers=JSON)
        assert answer.status == 200, answer
        line.tool(
            "send_message", project_key=str(yard), sender_name="Ada", to=["Echo"], subject="s", body_md="work"
        )


JSON = {"Content-Type": "application/json"}


def begun(yard: Path) -> list[int]:
    """Return the started programs, when there is one."""
    noted, pause = yard / "begun", threading.Event()
    for _ in range(int(PATIENCE / 0.05)):
        if noted.exists() and (lines := noted.read_text().splitlines()):
            return [int(line) for line in lines]
        pause.wait(0.05)
    raise AssertionError(f"no program was begun within {PATIENCE} s")


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_program_has_ended_before_another_server_can_begin_it(
    servers: list[RunningServer], tmp_path: Path, fault: signal.Signals
) -> None:
    yard = tmp_path / "yard"
    asked(servers[0], yard)
    (program,) = begun(yard)
    folder = psutil.Process(program).environ()["POSTROOM_DATA_DIR"]
    (server,) = (one for one in servers if str(one.data_dir) == folder)
    os.kill(server.pid, fault)
    with (yard / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # when no process of the program is left
        assert begun(yard) == [program]

"""A real partition: a server in a separate network, whose cable to the database is pulled out.

It needs the right to make networks; see `networks`.
"""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from addresses import free_address
from faults.cutting_proxy import a_proxy
from networks import Network, found_from_everywhere, missing_networks, networks
from soak.lines import Line
from soak.world import Environment, Server
from store_kinds import refuse_missing

PROGRAM = "trap '' TERM; echo $$ >> begun; while true; do sleep 300; done"
"""It works until it is killed."""
LEASE, PATIENCE = 30.0, 120.0
pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture
def network() -> Iterator[Network]:
    if why := missing_networks():
        pytest.skip(why)
    with networks(1) as [made]:
        yield made


async def furnished(server: Server) -> str:
    """Give an agent a program as its runner, and return the token of another agent."""
    server.yard.mkdir(exist_ok=True)
    line, yard = Line(server), str(server.yard)
    await line.tool("ensure_project", human_key=yard)
    for name in ("Ada", "Echo"):
        await line.tool("register_agent", project_key=yard, program="p", model="m", name=name)
    told = {"project": yard, "agent": "Echo", "runner": {"argv": ["/bin/sh", "-c", PROGRAM]}}
    status, said = await line.exchange("PUT", "/admin/runners", json.dumps(told).encode())
    assert status == 200, said
    made = await line.tool("rotate_agent_token", project_key=yard, agent_name="Ada")
    line.close()
    return Path(made["token_file"]).read_text().strip()


async def asked(server: Server, yard: Path, token: str) -> None:
    """Give that agent endless work."""
    line = Line(server)
    message = {
        "project_key": str(yard),
        "sender_name": "Ada",
        "to": ["Echo"],
        "subject": "s",
        "body_md": "work",
    }
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "send_message", "arguments": message},
    }
    as_ada = {"Authorization": f"Bearer {token}"}
    status, said = await line.exchange("POST", "/mcp", json.dumps(call).encode(), as_ada)
    line.close()
    assert (status, said["result"].get("isError", False)) == (200, False), said


async def started(server: Server) -> None:
    await server.spawn()
    await server.ready()


async def programs(yard: Path, number: int) -> list[Path]:
    """Return the started programs, when there are this many: where the system shows them."""
    async with asyncio.timeout(PATIENCE):
        while (
            len(found := (yard / "begun").read_text().split() if (yard / "begun").exists() else []) < number
        ):
            await asyncio.sleep(0.02)
    return [Path(f"/proc/{pid}/environ") for pid in found]


async def test_a_server_behind_a_partition_has_ended_its_programs_before_another_begins_them(
    postgres_dsn: str, network: Network, tmp_path: Path
) -> None:
    refuse_missing("postgres")
    schema = f"partition_{os.getpid()}"
    host, port = free_address()
    async with (
        a_proxy(postgres_dsn, network.here) as (_, through),
        found_from_everywhere([network], [port]),
    ):
        settings = {
            "POSTROOM_DATABASE_URL": through,
            "POSTROOM_DATABASE_SCHEMA": schema,
        }
        there = Environment(settings=settings, within=network.within)
        cut_off = Server(tmp_path / "one", there, (host, port))
        here = Environment(settings={**settings, "POSTROOM_DATABASE_URL": postgres_dsn})
        other = Server(tmp_path / "two", here)
        try:
            for server in (cut_off, other):
                server.data_dir.mkdir(parents=True)
            await started(other)
            token = await furnished(other)
            await other.stop()
            await started(cut_off)
            await asked(cut_off, other.yard, token)
            await programs(other.yard, 1)
            await started(other)
            network.cut_off()
            first, _ = await programs(other.yard, 2)
            assert not is_there(first)
        finally:
            await cut_off.kill()
            await other.kill()
            with suppress(FileNotFoundError):
                for pid in (other.yard / "begun").read_text().split():
                    with suppress(ProcessLookupError):
                        os.killpg(int(pid), signal.SIGKILL)
    with psycopg.connect(postgres_dsn, autocommit=True) as session:
        session.execute(f"DROP SCHEMA {schema} CASCADE")


def is_there(program: Path) -> bool:
    """Return whether a process is alive: an ended process has no environment, even before its parent collects it."""
    with suppress(OSError):
        return bool(program.read_bytes())
    return False

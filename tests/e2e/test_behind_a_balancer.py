"""Two servers on one PostgreSQL, with a real Caddy (`deploy/Caddyfile`) as their proxy and a real PgBouncer.

Caddy is Debian's package `caddy`, or whatever program of that name is found.
"""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from balancer import balanced, missing_balancer
from e2e.commands import run_here
from e2e.running import Answer, Cut, Line, RunningServer, plain_environment
from store_kinds import POOLED, pooled, refuse_missing

FOLDER = "/yard/balanced"
HOST = "mail.example.org"
MESSAGES = 40

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(missing_balancer() is not None, reason=str(missing_balancer())),
]


@pytest.fixture
def servers(postgres_dsn: str, tmp_path: Path) -> Iterator[tuple[RunningServer, ...]]:
    """Two servers that reach the database through the pooler, with a folder of data each."""
    refuse_missing(POOLED)
    schema = f"balanced_{socket.gethostname().lower().replace('-', '_')[:20]}"
    environment = {
        **plain_environment(tmp_path),
        "POSTROOM_DATABASE_URL": pooled(postgres_dsn),
        "POSTROOM_DATABASE_DIRECT_URL": postgres_dsn,
        "POSTROOM_DATABASE_SCHEMA": schema,
        "POSTROOM_ALLOWED_HOSTS": HOST,
    }
    one, two = (RunningServer(tmp_path / name, environment=environment) for name in ("one", "two"))
    with one, two:
        yield one, two
    with psycopg.connect(postgres_dsn, autocommit=True) as session:
        session.execute(f"DROP SCHEMA {schema} CASCADE")


class Client:
    """One that tries a call once more whose answer it did not get, with the same idempotency key."""

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self._address = address
        self._headers = {"Host": HOST, "Authorization": f"Bearer {token}"}

    def tool(self, tool: str, **arguments: Any) -> Any:
        call = {"name": tool, "arguments": {"project_key": FOLDER, **arguments}}
        answer = self._rpc({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
        result = answer.json()["result"]
        assert not result.get("isError"), result
        found = result["structuredContent"]
        return found["result"] if set(found) == {"result"} else found

    def _rpc(self, call: dict[str, Any]) -> Answer:
        for is_last in (False, True):
            try:
                with Line(self._address, headers=self._headers) as line:
                    answer = line.rpc(call)
                if answer.status == 200:
                    return answer
                assert not is_last, answer
            except (OSError, Cut):
                assert not is_last
        raise AssertionError


def test_each_server_answers_every_call_and_one_that_is_killed_costs_a_client_at_most_one_more_try(
    servers: tuple[RunningServer, ...], tmp_path: Path
) -> None:
    one, two = servers
    with one.line() as operator:
        operator.crew(FOLDER, "Ada", "Ben")
    made = run_here(
        "tokens", "create", "client", "--scope", "mail:send", "--scope", "mail:read",
        environment={**plain_environment(tmp_path), "POSTROOM_DATA_DIR": str(one.data_dir)},
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    with balanced([one.address, two.address], tmp_path, host=HOST) as address:
        client = Client(address, made.stdout.strip())
        sent = []
        for number in range(MESSAGES):
            if number == MESSAGES // 2:
                one.kill()
            message = client.tool(
                "send_message",
                sender_name="Ada",
                to=["Ben"],
                subject=f"{number}",
                body_md="plum",
                idempotency_key=f"message {number}",
            )
            sent.append(message["deliveries"][0]["payload"]["id"])
        assert len(set(sent)) == MESSAGES
        found = client.tool("fetch_inbox", agent_name="Ben", limit=MESSAGES * 2)
        assert sorted(message["id"] for message in found) == sorted(sent)
    assert two.is_running

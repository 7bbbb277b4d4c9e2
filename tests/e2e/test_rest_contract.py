"""What is asked of the REST interface as its own document says, or against it, gets what the document says.

schemathesis makes the requests from the document that the server serves: right ones and wrong ones, to the mail
room and its door in process, and to a real server. The numbers are small by default and the same each time; `POSTROOM_FUZZ=full`
asks far more.
"""

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from e2e.running import RunningServer
from mail_room import HARBOR
from postroom.app.connection import MAX_HEAD_LENGTH
from rest_room import OPERATOR, TOKEN, Edge, all_names, arguments_of

if os.environ.get("CI"):  # there it must be installed; elsewhere these tests may be passed over
    import schemathesis
else:
    schemathesis = pytest.importorskip("schemathesis")

from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.python.asgi import HOST
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

FULL = os.environ.get("POSTROOM_FUZZ") == "full"
IN_PROCESS = 500 if FULL else 12
OVER_THE_WIRE = 50 if FULL else 3
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
    ignored_auth,
]
"""Not: that every wrong request is refused (numbers may come as text) and every right one accepted (a folder must be an
absolute path, and a message has existing recipients).
"""
LEAK = re.compile(r'Traceback \(most recent|File \\?"[^"]+\\?", line \d')
"""Only the inside of the server would write this. Hypothesis also sends words of the source, and answers repeat them."""
NAMES = [*all_names(), "events"]
MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
KNOWN: dict[str, Any] = {
    "project_key": HARBOR,
    "human_key": HARBOR,
    "agent_name": "Ada",
    "sender_name": "Ada",
    "requester": "Ben",
    "message_id": 1,
    "reservation_id": 1,
    "thread_id": "msg-1",
}
"""The existing records, so that a call fails later than at its first name."""
pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200 if FULL else 300)]


class World:
    """A server that can be asked, with agents, messages and reservations, and its document."""

    def __init__(self, schema: Any, token: str, url: str | None) -> None:
        self.operations = {
            one.ok().definition.raw["operationId"]: one.ok() for one in schema.get_all_operations()
        }
        self._headers = {"Authorization": f"Bearer {token}"}
        self._url = url

    def ask(self, name: str, arguments: dict[str, Any]) -> None:
        """Ask what must be answered."""
        operation = self.operations[name]
        case = operation.Case(body=arguments, media_type="application/json")
        assert case.call(headers=self._headers, base_url=self._url).status_code == 200

    def examine(self, name: str, mode: GenerationMode, count: int) -> None:
        """Ask an operation in many ways and judge every answer."""

        @settings(
            max_examples=count,
            deadline=None,
            derandomize=not FULL,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=self.operations[name].as_strategy(generation_mode=mode), known=st.booleans())
        def asked(case: Any, known: bool) -> None:
            if known:
                case.headers.pop("Postroom-Agent-Token", None)  # a made up one ends every call at once
                for fields in (case.query, case.body):
                    if isinstance(fields, dict):
                        fields.update({key: KNOWN[key] for key in fields.keys() & KNOWN.keys()})
            if isinstance(case.query, dict) and isinstance(case.query.get("wait"), int):
                case.query["wait"] = min(case.query["wait"], 0)  # nothing happens meanwhile
            if self._url is not None:  # more than that no server of ours reads: see test_connections
                assume(len(case.as_curl_command()) < MAX_HEAD_LENGTH // 2)
            answer = case.call_and_validate(headers=self._headers, base_url=self._url, checks=CHECKS)
            assert not LEAK.search(answer.text), answer.text

        asked()


def furnish(world: World) -> None:
    who = {"project_key": HARBOR, "program": "p", "model": "m"}
    world.ask("ensure_project", {"human_key": HARBOR})
    for name in ("Ada", "Ben", "Cyd"):
        world.ask("register_agent", {**who, "name": name})
    world.ask("send_message", arguments_of("send_message"))
    world.ask("file_reservation_paths", arguments_of("file_reservation_paths"))


@pytest.fixture(scope="module")
def in_process() -> Iterator[World]:
    """The mail room with its HTTP middleware, called without a socket."""
    edge = Edge(allowed_hosts=(HOST,))
    world = World(schemathesis.openapi.from_asgi("/v1/openapi.json", edge.app, headers=OPERATOR), TOKEN, None)
    furnish(world)
    yield world
    edge.close()


@pytest.fixture(scope="module")
def over_the_wire(server: RunningServer) -> World:
    """A real server."""
    schema = schemathesis.openapi.from_url(f"{server.url}/v1/openapi.json", headers=server.headers)
    world = World(schema, server.token, server.url)
    furnish(world)
    return world


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_every_answer_is_one_that_the_document_tells(
    in_process: World, subtests: pytest.Subtests, mode: GenerationMode
) -> None:
    assert in_process.operations.keys() == set(NAMES)
    for name in NAMES:
        with subtests.test(name):
            in_process.examine(name, mode, IN_PROCESS)


def test_a_real_server_answers_as_its_document_tells_and_is_not_harmed(
    over_the_wire: World, server: RunningServer
) -> None:
    for name in NAMES if FULL else ("file_reservation_paths", "send_message", "events"):
        for mode in MODES:
            over_the_wire.examine(name, mode, OVER_THE_WIRE)
    with server.line() as line:
        assert line.request("GET", "/readyz").status == 200
    assert "Traceback" not in server.log()

"""Telemetry of a real server: what a collector on the wire is sent of a message, its run and its answer."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from e2e.running import Line, RunningServer, soon

pytestmark = pytest.mark.long

WRITTEN = "the-hidden-word"
CALLER = f"00-{'a' * 32}-{'b' * 16}-01"


class Collector(ThreadingHTTPServer):
    """A fake for tests: takes OTLP over HTTP on loopback and keeps what it is sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.bodies: list[bytes] = []
        self.asked: list[tuple[str, str]] = []

    def spans(self) -> dict[str, Any]:
        """Return the spans by name, the newest of each."""
        found = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        scopes = [scope for one in found for spans in one.resource_spans for scope in spans.scope_spans]
        return {span.name: span for scope in scopes for span in scope.spans}


class _Taking(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers["Content-Type"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        taking = threading.Thread(target=made.serve_forever, daemon=True)
        taking.start()
        yield made
        made.shutdown()
        taking.join(5)


def configured(folder: Path, text: str) -> RunningServer:
    """Return a server whose configuration file says this."""
    file = folder / "config" / "postroom" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return RunningServer(folder / "data")


def awaited(line: Line, folder: str) -> dict[str, Any]:
    """Return the first message that comes for Ada."""
    first: dict[str, Any] = soon(lambda: line.tool("fetch_inbox", project_key=folder, agent_name="Ada"))[0]
    return first


def test_a_message_its_run_and_the_answer_reach_a_collector_as_one_trace(
    collector: Collector, tmp_path: Path
) -> None:
    endpoint = f"http://127.0.0.1:{collector.server_address[1]}"
    folder, noted = str(tmp_path), tmp_path / "traceparent"
    with configured(tmp_path, f'telemetry = true\ntelemetry_endpoint = "{endpoint}"\n') as server:
        token = server.token
        with server.line() as line:
            line.crew(folder, "Ada", "Bo")
            told = f"cat > /dev/null; printf %s \"$TRACEPARENT\" > '{noted}'; echo {WRITTEN}"
            asked = {"project": folder, "agent": "Bo", "runner": {"argv": ["sh", "-c", told]}}
            body, typed = json.dumps(asked).encode(), {"Content-Type": "application/json"}
            assert line.request("PUT", "/admin/runners", body=body, headers=typed).status == 200
            message = {"sender_name": "Ada", "to": ["Bo"], "subject": WRITTEN, "body_md": WRITTEN}
            call = {"name": "send_message", "arguments": {"project_key": folder, **message}}
            document = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
            assert line.rpc(document, headers={"traceparent": CALLER}).status == 200
            assert awaited(line, folder)["body_md"] == WRITTEN
        assert server.stop() == 0
    sent, run = collector.spans()["execute_tool send_message"], collector.spans()["invoke_agent Bo"]
    assert (sent.trace_id.hex(), sent.parent_span_id.hex()) == ("a" * 32, "b" * 16)
    assert (run.trace_id, run.parent_span_id) == (sent.trace_id, sent.span_id)
    assert noted.read_text()[:-3] == f"00-{run.trace_id.hex()}-{run.span_id.hex()}"
    assert set(collector.asked) == {("/v1/traces", "application/x-protobuf")}
    everything = b"".join(collector.bodies)
    assert b"postroom" in everything
    assert WRITTEN.encode() not in everything
    assert token.encode() not in everything

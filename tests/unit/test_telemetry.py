"""Telemetry: off by default, named by the conventions, and never blocking."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from mail_room import HARBOR
from postroom.app import otel
from postroom.app.config import Settings
from postroom.app.otel import OtelTracing
from postroom.app.telemetry import build_traces_url, open_tracing
from postroom.app.wiring import Application
from postroom.contracts.errors import MissingExtra, UnknownAgent
from postroom.contracts.tracing import OFF
from postroom.extras import install_command
from postroom.mail.context import Caller
from postroom.mail.operations import MAIL_OPERATIONS
from postroom.services.calls import Calls
from rest_room import OPERATOR, Edge, arguments_of
from table_rows import each_row
from tracing_room import CALLER, Watched, code_of

WRITTEN = "the-hidden-word"


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
async def edge(watched: Watched) -> AsyncIterator[Edge]:
    made = Edge(tracing=watched.tracing)
    await made.furnish()
    yield made
    made.close()


async def test_a_call_over_rest_is_a_span_in_the_trace_that_its_header_names(
    edge: Edge, watched: Watched
) -> None:
    await edge.ask("whois", headers={**OPERATOR, "traceparent": CALLER})
    span = watched.span("execute_tool whois")
    assert (span["context"]["trace_id"], span["parent_id"]) == ("0x" + "a" * 32, "0x" + "b" * 16)
    assert (span["kind"], code_of(span)) == ("SpanKind.INTERNAL", None)
    assert span["attributes"] == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "whois",
        "gen_ai.tool.type": "function",
    }


@each_row(
    "odd",
    ["", "00", CALLER.upper(), CALLER[:-1], f"ff{CALLER[2:]}", f"00-{'0' * 32}-{'b' * 16}-01", "é" * 55],
)
async def test_a_header_that_names_no_place_begins_a_trace(edge: Edge, watched: Watched, odd: str) -> None:
    asked = {"project_key": HARBOR, "agent_name": "Ben"}
    await Calls(edge.mail, MAIL_OPERATIONS).perform("whois", asked, caller=Caller(), follows=odd)
    assert watched.span("execute_tool whois")["parent_id"] is None


async def test_over_mcp_a_client_names_its_trace_in_meta(edge: Edge, watched: Watched) -> None:
    """Through a real client of the protocol, in memory: it has the trace in `_meta`."""
    other = f"00-{'c' * 32}-{'d' * 16}-01"
    async with Client(edge.mcp) as client:
        asked: dict[str, Any] = {"project_key": HARBOR, "agent_name": "Ben"}
        await client.call_tool("whois", asked, meta={"traceparent": other})
    assert watched.span("execute_tool whois")["parent_id"] == "0x" + "d" * 16


async def test_nothing_that_somebody_wrote_and_no_token_is_in_any_span(edge: Edge, watched: Watched) -> None:
    secret = await edge.token_of("Ada")
    headers = {"Authorization": f"Bearer {secret}"}
    message = {**arguments_of("send_message"), "subject": WRITTEN, "body_md": WRITTEN}
    assert (await edge.ask("send_message", message, headers=headers)).status_code == 200
    for wrong in ({"to": [WRITTEN]}, {"to": []}, {"thread_id": f"/{WRITTEN}"}, {WRITTEN: 1}):
        answer = await edge.ask("send_message", {**message, **wrong}, headers=headers)
        assert answer.status_code in (400, 404)
        assert code_of(watched.span("execute_tool send_message")) == answer.json()["code"]
    await edge.ask("search_messages", {**arguments_of("search_messages"), "query": WRITTEN}, headers=headers)
    told = json.dumps(watched.spans())
    assert "execute_tool search_messages" in told
    assert WRITTEN not in told
    assert secret not in told


async def test_what_breaks_is_told_by_its_kind_alone(watched: Watched) -> None:
    for error, code in ((UnknownAgent(WRITTEN), "unknown_agent"), (RuntimeError(WRITTEN), "RuntimeError")):
        with pytest.raises(type(error)), watched.tracing.executing("whois"):
            raise error
        assert code_of(watched.spans()[-1]) == code
    assert WRITTEN not in json.dumps(watched.spans())


class Stuck(SpanExporter):
    """A collector that takes nothing until it is let."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.asked = threading.Event()

    def export(self, spans: Any) -> SpanExportResult:
        self.asked.set()
        self.let.wait(10)
        return SpanExportResult.SUCCESS


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    made = Stuck()
    yield made
    made.let.set()


@pytest.fixture
def held_up(stuck: Stuck) -> OtelTracing:
    return OtelTracing(BatchSpanProcessor(stuck, max_queue_size=8, max_export_batch_size=2))


async def test_a_collector_that_hangs_is_in_nobodys_way(
    held_up: OtelTracing, stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More spans than the buffer holds end before it is read; the loop continues, and the end does not wait."""
    monkeypatch.setattr(otel, "CLOSE_SECONDS", 0.01)
    for _ in range(20):
        with held_up.executing("whois"):
            pass
    assert await asyncio.to_thread(stuck.asked.wait, 5)
    assert not stuck.let.is_set()
    await asyncio.to_thread(held_up.close)


def test_a_collector_that_is_not_there_costs_a_bounded_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel, "EXPORT_SECONDS", 0.2)
    tracing = OtelTracing(otel.otlp("http://127.0.0.1:9/v1/traces"))
    with tracing.executing("whois"):
        pass
    tracing.close()
    tracing.close()


def test_off_nothing_is_watched_and_no_library_of_it_is_loaded() -> None:
    assert open_tracing(Settings()) is OFF
    with OFF.executing("whois", follows=CALLER) as span:
        span.failed("x")
        assert (span.traceparent, OFF.traceparent()) == (None, None)
    OFF.close()
    look = (
        "import sys, postroom.app.wiring; print([one for one in sys.modules if 'opentelemetry.sdk' in one])"
    )
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == "[]"


@each_row("name", ["opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"])
def test_on_without_its_libraries_nothing_is_started_and_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    for loaded in [one for one in sys.modules if one == "postroom.app.otel" or one.startswith(name)]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match="telemetry is on and requires opentelemetry") as refused:
        Application.open(Settings(data_dir=tmp_path / "data", telemetry=True))
    assert install_command("otel") in (refused.value.remedy or "")
    assert not (tmp_path / "data").exists()


def test_traces_go_below_the_address_unless_it_has_a_path(subtests: pytest.Subtests) -> None:
    for endpoint, expected in [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("https://collector.example/", "https://collector.example/v1/traces"),
        ("https://collector.example/team/v1/traces", "https://collector.example/team/v1/traces"),
    ]:
        with subtests.test(endpoint=endpoint, expected=expected):
            assert build_traces_url(endpoint) == expected

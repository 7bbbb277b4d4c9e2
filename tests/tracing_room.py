"""Spans that tests read: as a collector would get them."""

import json
from typing import Any

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from postroom.app.otel import OtelTracing

CALLER = f"00-{'a' * 32}-{'b' * 16}-01"
"""A traceparent of another trace."""


class Watched:
    """A tracing of the test whose spans stay here."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        self.tracing = OtelTracing(SimpleSpanProcessor(self._kept), environment="test")

    def spans(self) -> list[dict[str, Any]]:
        """Return the ended spans, in the order of their ends."""
        return [json.loads(span.to_json()) for span in self._kept.get_finished_spans()]

    def span(self, name: str) -> dict[str, Any]:
        """Return the newest of this name."""
        return [span for span in self.spans() if span["name"] == name][-1]


def read_trace(span: dict[str, Any]) -> str:
    return span["context"]["trace_id"]


def id_of(span: dict[str, Any]) -> str:
    return span["context"]["span_id"]


def code_of(span: dict[str, Any]) -> str | None:
    """Return how it failed; None when it did not."""
    failed = span["status"]["status_code"] == "ERROR"
    assert failed == ("error.type" in span["attributes"])
    assert "description" not in span["status"]
    return span["attributes"].get("error.type")

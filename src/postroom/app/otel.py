"""Traces with OpenTelemetry spans, in accordance with its conventions for generative AI.

The global state of the library is not set, so spans of other libraries are not exported. A span that has
ended is put into a queue, and a thread of the library sends it. Spans that the collector rejects are lost.
"""

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from postroom.contracts.errors import PostroomError
from postroom.contracts.tracing import Span
from postroom.version import __version__

NAME: Final = "postroom"
EXPORT_SECONDS: Final = 3
CLOSE_SECONDS: Final = 5
_TRACEPARENT: Final = "traceparent"
_FORM: Final = TraceContextTextMapPropagator()


def otlp(endpoint: str) -> SpanProcessor:
    """Return a processor that sends spans to a collector in batches on a separate thread."""
    return BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS))


class OtelTracing:
    """Creates spans for calls and runs.

    Spans contain names, ids and error codes, but no message texts.
    """

    is_on: Final = True

    def __init__(self, processor: SpanProcessor, *, environment: str = "local") -> None:
        about = {
            "service.name": NAME,
            "service.version": __version__,
            "deployment.environment.name": environment,
        }
        self._provider = TracerProvider(
            resource=Resource.create(about), sampler=ParentBased(ALWAYS_ON), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(NAME, __version__)

    def executing(
        self, tool: str, *, follows: str | None = None, answers: str | None = None
    ) -> AbstractContextManager[Span]:
        """Start a span for a mail operation within the trace of the caller."""
        answered = _place(answers)
        at_work = trace.get_current_span().get_span_context()
        places = [item for item in (at_work, _place(follows), answered) if item is not None and item.is_valid]
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "gen_ai.tool.type": "function",
        }
        return self._start_span(f"execute_tool {tool}", attributes, [*places[:1], answered])

    def invoking(
        self, agent: str, *, thread_id: str, run_id: str, follows: Sequence[str] = ()
    ) -> AbstractContextManager[Span]:
        """Start a span for a run; the traces in `follows` are the run's origin."""
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": NAME,
            "gen_ai.agent.name": agent,
            "gen_ai.conversation.id": thread_id,
            "postroom.run.id": run_id,
        }
        return self._start_span(f"invoke_agent {agent}", attributes, [_place(follow) for follow in follows])

    def traceparent(self) -> str | None:
        """Return the traceparent of the current span, or None if there is no current span."""
        return _write_traceparent(trace.get_current_span())

    def close(self) -> None:
        """Send the remaining spans within a few seconds. Blocks."""
        sending = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        sending.start()
        sending.join(CLOSE_SECONDS)

    def _start_span(
        self, name: str, attributes: dict[str, str], follows: Sequence[trace.SpanContext | None]
    ) -> "_Watched":
        places = list(
            {
                (span_context.trace_id, span_context.span_id): span_context
                for span_context in follows
                if span_context is not None
            }.values()
        )
        above = (
            trace.set_span_in_context(trace.NonRecordingSpan(places[0]), Context()) if places else Context()
        )
        links = [trace.Link(place) for place in places[1:]]
        return _Watched(self._tracer.start_span(name, above, attributes=attributes, links=links))


class _Watched(AbstractContextManager[Span]):
    """A span that is the current span within a `with` block."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._current = trace.use_span(span, record_exception=False, set_status_on_exception=False)

    @property
    def traceparent(self) -> str | None:
        return _write_traceparent(self._span)

    def failed(self, kind: str) -> None:
        self._span.set_attribute("error.type", kind)
        self._span.set_status(trace.StatusCode.ERROR)

    def __enter__(self) -> Span:
        self._current.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: TracebackType | None
    ) -> None:
        self._current.__exit__(None, None, None)
        if isinstance(error, PostroomError):
            self.failed(error.code)
        elif kind is not None:
            self.failed(kind.__name__)
        self._span.end()


def _place(traceparent: str | None) -> trace.SpanContext | None:
    if traceparent is None:
        return None
    context = _FORM.extract({_TRACEPARENT: traceparent}, Context())
    place = trace.get_current_span(context).get_span_context()
    return place if place.is_valid else None


def _write_traceparent(span: trace.Span) -> str | None:
    headers: dict[str, str] = {}
    _FORM.inject(headers, trace.set_span_in_context(span, Context()))
    return headers.get(_TRACEPARENT)

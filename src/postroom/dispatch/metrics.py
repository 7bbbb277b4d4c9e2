"""The mailbox's numbers in Prometheus form. Labels are few and come from fixed lists."""

import time
from collections.abc import Awaitable, Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus

T = TypeVar("T")

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_FAST = BUCKETS[:13]


class MailboxMetrics:
    """The numbers of one mailbox in a registry of its own, or in the one given."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry = registry or CollectorRegistry()

        def seconds(name: str, said: str, *labels: str) -> Histogram:
            return Histogram(f"postroom_{name}_seconds", said, labels, buckets=BUCKETS, registry=registry)

        def count(name: str, said: str, *labels: str) -> Counter:
            return Counter(f"postroom_{name}", said, labels, registry=registry)

        self.active_runs = Gauge("postroom_active_runs", "Runs that execute here.", registry=registry)
        self.waiting_threads = Gauge(
            "postroom_mailbox_waiting_threads", "Threads that wait here for a free slot.", registry=registry
        )
        self._depth = Gauge(
            "postroom_mailbox_dispatch_depth", "Dispatches by status.", ["status"], registry=registry
        )
        self._operations = count("mailbox_operations", "Store operations.", "operation", "result")
        self._operation_seconds = Histogram(
            "postroom_mailbox_operation_duration_seconds",
            "Time a store operation took.",
            ["operation", "result"],
            buckets=_FAST,
            registry=registry,
        )
        self._to_start = {
            "enqueue": seconds("mailbox_dispatch_enqueue_to_start", "From enqueued to started."),
            "eligible": seconds("mailbox_dispatch_eligible_to_start", "From due to started."),
            "claim": seconds("mailbox_dispatch_claim_to_start", "From claimed to started."),
        }
        self._complete = seconds("mailbox_dispatch_enqueue_to_complete", "From enqueued to ended.", "outcome")
        self._runtime = seconds("mailbox_dispatch_runtime", "From started to ended.", "outcome")
        self._runs = count("runs", "Runs by how they ended.", "outcome")
        self._run_seconds = seconds("run_duration", "How long runs took.", "outcome")
        self._leases_lost = count("mailbox_leases_lost", "Leases lost while a run was at work.")
        self._abandoned = count("mailbox_runs_abandoned", "Executions that did not stop when told to.")
        for status in RunDispatchStatus:
            self._depth.labels(status.label).set(0)
        self._counters: dict[tuple[str, str], Counter] = {}
        self._timers: dict[tuple[str, str], Histogram] = {}

    async def observed(self, operation: str, work: Awaitable[T]) -> T:
        """Await a store operation and record its time and result."""
        began = time.perf_counter()
        result = "error"
        try:
            answer = await work
            result = "empty" if answer is None and operation.startswith("claim") else "ok"
            return answer
        finally:
            self.happened(operation, result)
            timer = self._timers.get((operation, result))
            if timer is None:
                timer = self._operation_seconds.labels(operation, result)
                self._timers[operation, result] = timer
            timer.observe(time.perf_counter() - began)

    def happened(self, operation: str, result: str = "ok") -> None:
        """Record that something was done which is no single store operation."""
        counter = self._counters.get((operation, result))
        if counter is None:  # to look a label up costs more than to count
            counter = self._counters[operation, result] = self._operations.labels(operation, result)
        counter.inc()

    def started(self, dispatch: RunDispatch, *, now: int) -> None:
        """Record how long a dispatch waited before it was started."""
        self._to_start["enqueue"].observe(max(now - dispatch.created_at, 0) / 1000)
        self._to_start["eligible"].observe(
            max(now - (dispatch.available_at or dispatch.created_at), 0) / 1000
        )
        self._to_start["claim"].observe(max(now - (dispatch.claimed_at or now), 0) / 1000)

    def ended(self, outcome: str, *, dispatch: RunDispatch, started_at: int, now: int) -> None:
        """Record how an execution ended."""
        self._runs.labels(outcome).inc()
        self._run_seconds.labels(outcome).observe(max(now - started_at, 0) / 1000)
        self._runtime.labels(outcome).observe(max(now - started_at, 0) / 1000)
        self._complete.labels(outcome).observe(max(now - dispatch.created_at, 0) / 1000)

    def run_ended(self, outcome: str) -> None:
        """Record the end of a run that was not executing."""
        self._runs.labels(outcome).inc()

    def lease_lost(self) -> None:
        """Record a lease lost while the run was at work."""
        self._leases_lost.inc()

    def run_abandoned(self) -> None:
        """Record an execution that did not stop when it was told to."""
        self._abandoned.inc()

    def show_depths(self, counts: Mapping[RunDispatchStatus, int]) -> None:
        """Set the gauges to what was just counted."""
        for status in RunDispatchStatus:
            self._depth.labels(status.label).set(counts.get(status, 0))

    def value(self, name: str, **labels: str) -> float:
        """Return one number, 0 when it was never recorded."""
        return self.registry.get_sample_value(name, labels) or 0.0

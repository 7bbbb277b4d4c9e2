"""The metrics of a mailbox in the Prometheus text format, with labels from short fixed lists."""

import time
from bisect import bisect_left
from collections.abc import Awaitable, Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Final, TypeVar

from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import InvalidArgument, PostroomError, StaleClaim, StoreError
from postroom.contracts.run_stores import MAX_COUNTED
from postroom.contracts.waking import ThreadsNeeded

# imported only for exports, so that a program which only uses the queue need not load it
if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

T = TypeVar("T")

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_FAST: Final = BUCKETS[:13]


class _Number:
    def __init__(self, name: str, said: str, *labels: str, is_gauge: bool = False) -> None:
        self.name = name
        self.said = said
        self.labels = labels
        self.is_gauge = is_gauge
        self.values: dict[tuple[str, ...], float] = {} if labels else {(): 0}

    def add(self, *labels: str, amount: int = 1) -> None:
        self.values[labels] = self.values.get(labels, 0) + amount

    def set(self, value: float, *labels: str) -> None:
        self.values[labels] = value

    def samples(self) -> Mapping[str, Mapping[tuple[str, ...], float]]:
        return {self.name if self.is_gauge else f"{self.name}_total": self.values}

    def collect(self) -> "Metric":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        family = (GaugeMetricFamily if self.is_gauge else CounterMetricFamily)(
            self.name, self.said, labels=self.labels
        )
        for labels, value in self.values.items():
            family.add_metric(labels, value)
        return family


class _Seconds:
    def __init__(self, name: str, said: str, *labels: str, bounds: tuple[float, ...] = BUCKETS) -> None:
        self.name = f"{name}_seconds"
        self.said = said
        self.labels = labels
        self._bounds = bounds
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        if not labels:
            self._begin(())

    def _begin(self, labels: tuple[str, ...]) -> None:
        self._counts[labels] = [0] * (len(self._bounds) + 1)
        self._sums[labels] = 0.0

    def observe(self, seconds: float, *labels: str) -> None:
        if labels not in self._counts:
            self._begin(labels)
        self._counts[labels][bisect_left(self._bounds, seconds)] += 1
        self._sums[labels] += seconds

    def samples(self) -> Mapping[str, Mapping[tuple[str, ...], float]]:
        counts = {labels: sum(several) for labels, several in self._counts.items()}
        return {f"{self.name}_sum": self._sums, f"{self.name}_count": counts}

    def collect(self) -> "Metric":
        from prometheus_client.core import HistogramMetricFamily
        from prometheus_client.utils import floatToGoString

        family = HistogramMetricFamily(self.name, self.said, labels=self.labels)
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        for labels, counts in self._counts.items():
            family.add_metric(
                labels, list(zip(bounds, accumulate(counts), strict=True)), sum_value=self._sums[labels]
            )
        return family


class MailboxMetrics:
    """The metrics of one mailbox."""

    def __init__(self, registry: "CollectorRegistry | None" = None) -> None:
        self.active_runs = _Number("postroom_active_runs", "Active runs in this process.", is_gauge=True)
        self.waiting_threads = _Number(
            "postroom_mailbox_waiting_threads",
            "Threads that wait for a free slot in this process.",
            is_gauge=True,
        )
        self._depth = _Number(
            "postroom_mailbox_dispatch_depth",
            f"Dispatches by status. Acked, cancelled and superseded are counted up to {MAX_COUNTED}.",
            "status",
            is_gauge=True,
        )
        self._operations = _Number("postroom_mailbox_operations", "Store operations.", "operation", "result")
        self._operation_seconds = _Seconds(
            "postroom_mailbox_operation_duration",
            "Duration of store operations.",
            "operation",
            "result",
            bounds=_FAST,
        )
        waited = "postroom_mailbox_dispatch_{}_to_start"
        self._enqueue_to_start = _Seconds(waited.format("enqueue"), "Time from enqueued to started.")
        self._eligible_to_start = _Seconds(waited.format("eligible"), "Time from due to started.")
        self._claim_to_start = _Seconds(waited.format("claim"), "Time from claimed to started.")
        self._complete = _Seconds(
            "postroom_mailbox_dispatch_enqueue_to_complete",
            "Time from enqueued to the end of an execution.",
            "outcome",
        )
        self._runtime = _Seconds(
            "postroom_mailbox_dispatch_runtime", "Time from started to ended.", "outcome"
        )
        self.runs = _Number("postroom_runs", "Ended runs by outcome.", "outcome")
        self._run_seconds = _Seconds("postroom_run_duration", "Duration of executions.", "outcome")
        self._leases_lost = _Number("postroom_mailbox_leases_lost", "Leases lost during an execution.")
        self._abandoned = _Number(
            "postroom_mailbox_runs_abandoned", "Executions that did not stop when asked."
        )
        self.show_depths({})
        if registry is not None:
            registry.register(self)

    def collect(self) -> "Iterable[Metric]":
        """Return all metrics for Prometheus."""
        return [item.collect() for item in self._number_metrics()]

    def value(self, name: str, **labels: str) -> float:
        """Return the value of one metric, or 0 if no value was recorded.

        Raises:
            InvalidArgument: No metric has this name, or it has other labels.
        """
        for item in self._number_metrics():
            recorded = item.samples().get(name)
            if recorded is None:
                continue
            if labels.keys() != set(item.labels):
                needs = ", ".join(item.labels) or "none"
                raise InvalidArgument(
                    f"{name} does not have these labels", value=[*labels], remedy=f"its labels: {needs}"
                )
            return recorded.get(tuple(labels[label] for label in item.labels), 0.0)
        raise InvalidArgument(
            f"a mailbox has no metric {name!r}",
            value=name,
            remedy="see docs/reference/metrics.md for the names",
        )

    def _number_metrics(self) -> list[_Number | _Seconds]:
        return [item for item in vars(self).values() if isinstance(item, _Number | _Seconds)]

    async def observed(self, operation: str, work: Awaitable[T]) -> T:
        """Await a store operation, and record the duration and the result of the operation."""
        began = time.perf_counter()
        result = "error"
        try:
            answer = await work
        except ThreadsNeeded:
            result = "again"
            raise
        except PostroomError as error:
            result = "error" if isinstance(error, StoreError | StaleClaim) else "refused"
            raise
        else:
            result = "empty" if answer is None and operation.startswith("claim") else "ok"
            return answer
        finally:
            self._operations.add(operation, result)
            self._operation_seconds.observe(time.perf_counter() - began, operation, result)

    def happened(self, operation: str, result: str = "ok") -> None:
        """Count an operation by its result."""
        self._operations.add(operation, result)

    def started(self, dispatch: RunDispatch, *, now: int) -> None:
        """Record how long a dispatch waited before the start of the run."""
        self._enqueue_to_start.observe(max(now - dispatch.created_at, 0) / 1000)
        self._eligible_to_start.observe(max(now - (dispatch.available_at or dispatch.created_at), 0) / 1000)
        self._claim_to_start.observe(max(now - (dispatch.claimed_at or now), 0) / 1000)

    def ended(self, outcome: str, *, dispatch: RunDispatch, started_at: int, now: int) -> None:
        """Record the outcome and the duration of an execution."""
        took = max(now - started_at, 0) / 1000
        self._run_seconds.observe(took, outcome)
        self._runtime.observe(took, outcome)
        self._complete.observe(max(now - dispatch.created_at, 0) / 1000, outcome)

    def lease_lost(self) -> None:
        """Count a lease that was lost during an execution."""
        self._leases_lost.add()

    def run_abandoned(self) -> None:
        """Count an execution that ignored a request to stop."""
        self._abandoned.add()

    def show_depths(self, counts: Mapping[RunDispatchStatus, int]) -> None:
        """Set the gauges of queue lengths to the number of dispatches in each status."""
        for status in RunDispatchStatus:
            self._depth.set(counts.get(status, 0), status.label)

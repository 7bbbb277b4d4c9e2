"""Prometheus metrics, with their names and sources. Labels have few values, and contain no agent names."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from postroom.contracts.clock import Clock
from postroom.contracts.outbox import Backlog
from postroom.mail.outgoing import ARCHIVE
from postroom.stores.stores import Stores
from postroom.version import __version__

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

SERVER: Final = {
    "dead_letters": "Dead letters of runs, without those of chats, which have a metric of their own.",
    "oldest_waiting_run_age_seconds": (
        "Time for which the run that is due longest has waited; 0 if no run waits."
    ),
    "agents_with_runner": "Agents whose runs the server executes.",
    "agents_executing": "Agents whose program is running now.",
    "unread_messages": "Unread messages; a message that is unread in two inboxes counts twice.",
    "backup_age_seconds": "Age of the newest backup; +Inf if there is none.",
    "open_descriptors": "Open files and sockets of the server; NaN if the system does not report it.",
    "most_descriptors": "Maximum number of open files and sockets; +Inf without a limit.",
}
"""The gauges without a label, by name."""
OUTBOX: Final = {
    "waiting": "Waiting effects, by kind.",
    "dead_letters": "Dead letters of the outbox, by kind.",
}
"""The gauges of the outbox, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The values of the server's gauge metrics at one point in time."""

    dead_letters: int
    oldest_waiting_ms: int
    with_runner: int
    executing: int
    unread: int
    backup_age_ms: int | None
    descriptors: int | None
    most_descriptors: int | None


class Metrics:
    """The metrics of one server, in a separate registry."""

    def __init__(self, store: Stores, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.registry = CollectorRegistry()
        self._calls = Counter(
            "postroom_tool_calls",
            "Calls of tools by tool and outcome, over MCP and REST.",
            ["tool", "outcome"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "postroom_tool_seconds",
            "Duration of tool calls.",
            ["tool"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._waiting = Gauge(
            "postroom_archive_backlog", "Records that are not in the archive yet.", registry=self.registry
        )
        self._age = Gauge(
            "postroom_archive_backlog_age_seconds",
            "Age of the oldest record that is not in the archive yet.",
            registry=self.registry,
        )
        self._server = {
            name: Gauge(f"postroom_{name}", text, registry=self.registry) for name, text in SERVER.items()
        }
        self._outbox = {
            name: Gauge(f"postroom_outbox_{name}", text, ["kind"], registry=self.registry)
            for name, text in OUTBOX.items()
        }
        self._rows = Gauge("postroom_records", "Records by kind.", ["kind"], registry=self.registry)
        self._lag = Gauge(
            "postroom_loop_lag_seconds",
            "Longest recent time for which the event loop was blocked.",
            registry=self.registry,
        )
        Gauge("postroom_info", "The version.", ["version"], registry=self.registry).labels(__version__).set(1)
        self.registry.register(_Grouping(store))

    def observe_call(self, tool: str, outcome: str, seconds: float) -> None:
        """Count a tool call, and record the duration of the call.

        `tool` is the name of an operation, and `outcome` is "ok" or an error code.
        """
        self._calls.labels(tool, outcome).inc()
        self._seconds.labels(tool).observe(seconds)

    def show_state(self, backlogs: Mapping[str, Backlog], counts: dict[str, int], lag_seconds: float) -> None:
        """Set the gauges for the outbox backlogs, the number of records, and the lag of the event loop."""
        for kind, backlog in backlogs.items():
            self._outbox["waiting"].labels(kind).set(backlog.waiting)
            self._outbox["dead_letters"].labels(kind).set(backlog.dead)
        self._waiting.set(backlogs[ARCHIVE].waiting)
        oldest = backlogs[ARCHIVE].oldest_at
        self._age.set(0 if oldest is None else max(0, self._clock.now() - oldest) / 1000)
        for kind, count in counts.items():
            self._rows.labels(kind).set(count)
        self._lag.set(lag_seconds)

    def show_server(self, state: ServerState) -> None:
        """Set the gauges for the work and the resource usage of the server."""
        shown = {
            "dead_letters": state.dead_letters,
            "oldest_waiting_run_age_seconds": state.oldest_waiting_ms / 1000,
            "agents_with_runner": state.with_runner,
            "agents_executing": state.executing,
            "unread_messages": state.unread,
            "backup_age_seconds": math.inf if state.backup_age_ms is None else state.backup_age_ms / 1000,
            "open_descriptors": math.nan if state.descriptors is None else state.descriptors,
            "most_descriptors": math.inf if state.most_descriptors is None else state.most_descriptors,
        }
        for name, value in shown.items():
            self._server[name].set(value)


class _Grouping(Collector):
    def __init__(self, store: Stores) -> None:
        self._store = store

    def collect(self) -> list[Metric]:
        commits, changes = self._store.grouping
        return [
            CounterMetricFamily("postroom_db_commits", "Commits since start.", value=commits),
            CounterMetricFamily("postroom_db_changes", "Changes since start.", value=changes),
        ]

"""The gateway's metrics. `accepted = finished + queued + running + rejected` is always true.

Each process counts only the messages that it hands over itself.
"""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


@dataclass(frozen=True, slots=True)
class InboundCounts:
    """The number of accepted inbound messages in each state."""

    accepted: int
    finished: int
    queued: int
    running: int
    rejected: int

    @property
    def adds_up(self) -> bool:
        """Whether the counts of all states add up to the number of accepted messages."""
        return self.accepted == self.finished + self.queued + self.running + self.rejected


class GatewayMetrics:
    """The gateway's counters, gauges and histograms."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = CollectorRegistry() if registry is None else registry
        self.registry = registry
        self._messages = Counter(
            "postroom_chat_messages_total",
            "Messages from chats, by result",
            ["outcome"],
            registry=registry,
        )
        self._counted: dict[str, Counter] = {}
        """The message counters by outcome, cached because looking up a label costs more than counting."""
        self._open = Gauge(
            "postroom_chat_messages_open",
            "Inbound messages that have no answer yet",
            ["status"],
            registry=registry,
        )
        self._deliveries = Counter(
            "postroom_chat_delivery_failures_total",
            "Failed attempts to send",
            ["kind"],
            registry=registry,
        )
        self._delivery_time = Histogram(
            "postroom_chat_delivery_seconds",
            "Time from the end of a run to the delivery of its answer",
            buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 30, 120, 600, 3600),
            registry=registry,
        )
        self._given_up = Counter(
            "postroom_chat_replies_given_up_total", "Undelivered answers", registry=registry
        )
        self._channel_up = Gauge(
            "postroom_chat_channel_up", "Whether a channel receives messages", ["platform"], registry=registry
        )

    def message(self, outcome: str) -> None:
        """Count a message.

        `outcome` is accepted, duplicate, refused, started, queued, steered, collected, rejected or passed_on.
        """
        counter = self._counted.get(outcome)
        if counter is None:
            counter = self._counted[outcome] = self._messages.labels(outcome)
        counter.inc()

    def show_open(self, waiting: int, handed_over: int) -> None:
        """Set the gauges for the number of unanswered messages."""
        self._open.labels("waiting").set(waiting)
        self._open.labels("handed_over").set(handed_over)

    def channel(self, platform: str, *, is_up: bool) -> None:
        """Set the gauge that shows whether a channel receives messages."""
        self._channel_up.labels(platform).set(is_up)

    def delivered(self, after_ms: int) -> None:
        """Record the delivery of an answer, `after_ms` milliseconds after the answer was created."""
        self._delivery_time.observe(max(after_ms, 0) / 1_000)

    def delivery_failed(self, kind: str) -> None:
        """Count a failed delivery attempt."""
        self._deliveries.labels(kind).inc()

    def gave_up(self) -> None:
        """Count an answer that became a dead letter."""
        self._given_up.inc()

"""The page of the metrics: every family of the registry."""

import asyncio
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from from_code.markdown import table
from postroom.app.metrics import BUCKETS, Metrics
from postroom.contracts.clock import SystemClock
from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.outbox import Backlog
from postroom.dispatch.metrics import BUCKETS as LONG_BUCKETS
from postroom.dispatch.metrics import MailboxMetrics
from postroom.gateway.metrics import GatewayMetrics


class _NoWriter:
    grouping = (0, 0)


def page() -> str:
    """Return the page."""
    writer: Any = _NoWriter()
    metrics = Metrics(writer, SystemClock())
    metrics.observe_call("tool", "ok", 0.0)
    metrics.show_state({"archive": Backlog(waiting=0, oldest_at=None)}, {"kind": 0}, 0.0)
    columns = ("name", "kind", "labels", "meaning")
    return f"""
# Metrics

`/metrics` returns them in Prometheus' text format, with the server's token. Labels have a bounded number of
values: no label contains the name of a person, an agent or a project.

{table(columns, _rows(metrics.registry))}

`tool` is a tool's name, or `unknown`; `outcome` is `ok` or the `code` of a refusal; `kind` is a kind of
record. The buckets of histograms end at {", ".join(f"{one:g}" for one in BUCKETS)} seconds.

## Of a mailbox

They are in the registry of `Mailbox(..., metrics=MailboxMetrics(registry))`. Without a registry, Prometheus
is not loaded, and `mailbox.metrics.value(name, **labels)` reads a number; a name or a label that does not
exist is refused.

{table(columns, _rows(_of_a_mailbox()))}

`operation` is a store operation or one step of a sweep. `result` is `ok`; `error` if the store failed or the
claim was lost; `refused` if a rule refused it; `again` for a change that is repeated with more locks; `empty`
for a claim that found no work; or `lost` for a lost lease. `status` is a dispatch's status.

Each run counts once in `postroom_runs_total`. Its `outcome` is `completed` if its executor returned a result,
also a failed one; `permanent_error` if it failed and is not retried; `dead_letter` if its attempts were used
up; `cancelled` or `superseded` if it ended in the queue, during a wait, or because another run took its
place. A run that waits, or that is retried, has not ended. `outcome` of a duration is the end of one
execution: `completed`, `permanent_error`, or `transient_error` if it may be retried. The buckets of durations
end at {", ".join(f"{one:g}" for one in LONG_BUCKETS)} seconds, those of operations at 10. A server shows
these at `/metrics` too.

## Of a gateway

`/metrics` returns them if the server has chats.

{table(columns, _rows(_of_a_gateway()))}

`outcome` is the outcome of an inbound message, `status` the state of an open one, `kind` the reason of a
failed attempt, `platform` a channel.
"""


def _of_a_gateway() -> CollectorRegistry:
    """Return the registry of a gateway in which each number was recorded once, so that its labels show."""
    metrics = GatewayMetrics()
    metrics.message("accepted")
    metrics.show_open(0, 0)
    metrics.delivered(0)
    metrics.delivery_failed("unknown")
    metrics.gave_up()
    metrics.channel("web", is_up=True)
    return metrics.registry


def _of_a_mailbox() -> CollectorRegistry:
    """Return the registry of a mailbox in which each number was recorded once, so that its labels show."""
    registry = CollectorRegistry()
    metrics = MailboxMetrics(registry)
    dispatch = RunDispatch.queued("d", "t", "r", created_at=0)
    asyncio.run(metrics.observed("operation", asyncio.sleep(0)))
    metrics.started(dispatch, now=0)
    metrics.ended("outcome", dispatch=dispatch, started_at=0, now=0)
    metrics.runs.add("outcome")
    return registry


def _rows(registry: CollectorRegistry) -> list[tuple[str, str, str, str]]:
    return [_family(family) for family in registry.collect()]


def _family(family: Metric) -> tuple[str, str, str, str]:
    labels = sorted({name for sample in family.samples for name in sample.labels} - {"le"})
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return f"`{name}`", family.type, ", ".join(f"`{one}`" for one in labels), family.documentation

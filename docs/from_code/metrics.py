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

At `/metrics`, in Prometheus' text form, for who has the server's token. Labels are bounded: no label holds
the name of a person, an agent or a project.

{table(columns, _rows(metrics.registry))}

`tool` is a tool's name, or `unknown`; `outcome` is `ok` or the `code` of a refusal; `kind` is a kind of
record. The buckets of histograms end at {", ".join(f"{one:g}" for one in BUCKETS)} seconds.

## Of a mailbox

In the registry that is given to `Mailbox(..., metrics=MailboxMetrics(registry))`. Without one nothing of
Prometheus is loaded, and `mailbox.metrics.value(name, **labels)` reads a number;
a name or a label that does not exist is refused.

{table(columns, _rows(_of_a_mailbox()))}

`operation` is a store operation or one step of a sweep; `result` is `ok`, `error` where the store failed or
the claim was lost, `refused` where a rule said no, `again` for a change that is run once more behind more
locks, `empty` for a claim that found nothing, or `lost` for a lease that was.
`status` is a dispatch's status.

`outcome` of `postroom_runs_total` is how a run ended, and each run counts once: `completed` where its
executor gave a result, whatever that says; `permanent_error` where it failed in a way that is not tried
again; `dead_letter` where its attempts were used up; `cancelled` or `superseded` where it ended while it was
queued, where it waited, or where another took its place. A run that waits, or that is tried again, has not
ended. `outcome` of a duration is how one execution ended: `completed`, `permanent_error`, or
`transient_error` where it may be tried again. The buckets of durations end at
{", ".join(f"{one:g}" for one in LONG_BUCKETS)} seconds, those of operations at 10. A
server shows these at `/metrics` too.

## Of a gateway

At `/metrics` when there are chats.

{table(columns, _rows(_of_a_gateway()))}

`outcome` is what became of an inbound message, `status` where an open one is, `kind` why a try failed,
`platform` a channel.
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

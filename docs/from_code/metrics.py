"""The page of the metrics: every family of the registry."""

from typing import Any

from prometheus_client.metrics_core import Metric

from from_code.markdown import table
from postroom.app.metrics import BUCKETS, Metrics
from postroom.contracts.clock import SystemClock
from postroom.contracts.mail import Backlog


class _NoWriter:
    grouping = (0, 0)


def page() -> str:
    """Return the page."""
    writer: Any = _NoWriter()
    metrics = Metrics(writer, SystemClock())
    metrics.observe_call("tool", "ok", 0.0)
    metrics.show_state(Backlog(waiting=0, oldest_at=None), {"kind": 0}, 0.0)
    rows = [_family(family) for family in metrics.registry.collect()]
    return f"""
# Metrics

At `/metrics`, in Prometheus' text form, for who has the server's token. Labels are bounded: no label holds
the name of a person, an agent or a project.

{table(("name", "kind", "labels", "meaning"), rows)}

`tool` is a tool's name, or `unknown`; `outcome` is `ok` or the `code` of a refusal; `kind` is a kind of
record. The buckets of histograms end at {", ".join(f"{one:g}" for one in BUCKETS)} seconds.
"""


def _family(family: Metric) -> tuple[str, str, str, str]:
    labels = sorted({name for sample in family.samples for name in sample.labels} - {"le"})
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return f"`{name}`", family.type, ", ".join(f"`{one}`" for one in labels), family.documentation

"""Opens the tracer of calls and runs. If telemetry is off, its libraries are not loaded."""

from urllib.parse import urlsplit

from postroom.app.config import Settings
from postroom.contracts.errors import MissingExtra
from postroom.contracts.tracing import OFF, Tracing
from postroom.extras import install_command


def open_tracing(settings: Settings) -> Tracing:
    """Create the tracer for calls and runs according to the settings.

    Blocks.

    Raises:
        MissingExtra: Telemetry is on, but its libraries are not installed.
    """
    if not settings.telemetry:
        return OFF
    try:
        from postroom.app.otel import OtelTracing, otlp  # loaded only if telemetry is on
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"telemetry is on and requires {error.name}, which is not installed",
            value=error.name,
            remedy=f"{install_command('otel')}, or set telemetry to false",
        ) from error
    return OtelTracing(otlp(build_traces_url(settings.telemetry_endpoint)), environment=settings.environment)


def build_traces_url(endpoint: str) -> str:
    """Return the URL to which traces are sent; the default path is `/v1/traces`."""
    path = urlsplit(endpoint).path
    return endpoint if path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"

"""The page of the HTTP addresses: every route, and for whom the door opens."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from starlette.routing import BaseRoute, Mount, Route

from from_code.channels import with_addresses
from from_code.markdown import table
from postroom.app.gateway_wiring import open_paths
from postroom.app.operations import ADMINISTRATION, ALL_OPERATIONS
from postroom.contracts.clock import SystemClock
from postroom.contracts.operations import Operation, Who
from postroom.executors.remote import CALLBACKS
from postroom.gateway.session import Platform
from postroom.http_api import permissions
from postroom.http_api.routes import callback_routes, hook_routes, routes
from postroom.http_api.sessions import LoginService
from postroom.services.login_codes import LoginCodes, Sessions
from postroom.stores.sqlite import SqliteStore
from postroom.web.pages import page_routes
from postroom.web.site import PageServices

ROUTE_WORDS: Final = {
    "/healthz": "The process answers: status and version.",
    "/readyz": "The health of store, archive and event loop, checked at most once a second; 503 if a "
    "required "
    "part fails.",
    "/metrics": "Prometheus text. See [metrics](metrics.md).",
    "/login": "The form that takes the server's token, and the target of one-time links.",
    "/logout": "Ends the browser's session at every server. A form on a page sends this request.",
    "/callbacks/{dispatch_id}": "Receives the result of a run from another server. See "
    "[runners](../runners.md#another-server).",
    "/": "Projects.",
    "/p/{slug}": "A project's control room: questions and failures that need a person, current work, "
    "and waiting work.",
    "/p/{slug}/timeline": "The project's recent messages, the runs that they started, and reserved files. "
    "`?agent=` or `?thread=` selects some of them.",
    "/p/{slug}/questions": "The questions of the project's agents, and their answers. `POST` answers "
    "a question: "
    "the form of the page, from people who have logged in.",
    "/p/{slug}/schedules": "The schedules of the project. `POST` pauses a schedule, resumes it, or "
    "sends its message "
    "now, by a form as above.",
    "/p/{slug}/runs": "Active runs, queued runs with their reasons, and dead letters. `POST` cancels "
    "or retries "
    "a run, by a form as above. With `?live=1` the page reloads itself.",
    "/p/{slug}/runs/{run_id}": "A run: its state, its output, its answer. `POST` as above. "
    "With `?live=1` the page reloads itself.",
    "/p/{slug}/digest": "Summarize the last `hours`, as `catch_up` does.",
    "/find": "Find projects, agents, messages, runs and pages by words.",
    "/push": "Notifications in a browser, as JSON for a script: state, turn on, test, turn off, answer.",
    "/chats": "The open questions and the dead letters of chats.",
    "/chats/{run_id}": "The run of a question or dead letter. `POST` answers its question, or "
    "replays or discards the dead "
    "letter, by a form as above.",
    "/p/{slug}/write": "The form for a message: `?to=` names the agent, `?reply=` the answered "
    "message. `POST` "
    "sends it, by a form as above.",
    "/p/{slug}/agents": "The project's agents.",
    "/p/{slug}/agents/{name}": "An agent, its messages, and its reservations. `?box=sent` shows the "
    "sent messages.",
    "/p/{slug}/threads": "The project's threads, newest first.",
    "/p/{slug}/t/{thread_id}": "A thread, in order.",
    "/p/{slug}/m/{message_id}": "A message.",
    "/p/{slug}/reservations/decide": "Ends a reservation, or shares overlapping ones "
    "(`POST`), by a form of the control room, from people who have logged in.",
    "/p/{slug}/m/{message_id}/mark": "Marks a message as read by a person, or acknowledges it "
    "(`POST`), by a form of its page, from people who have logged in.",
    "/p/{slug}/m/{message_id}/source": "A message's original text, as a download.",
    "/p/{slug}/tasks/decide": "Accepts or rejects a finished task that waits for a person.",
    "/p/{slug}/tasks": "Open tasks, those to claim first, and the last ended ones. `?task=` selects one.",
    "/p/{slug}/notes": "Active notes, newest first. `?q=` searches; `?note=` selects one.",
    "/p/{slug}/reservations": "Active reservations, and the last ended ones. `?path=` selects one path.",
    "/p/{slug}/search": "Search: `?q=`, `?order=newest` or `best`.",
    "/p": "Redirects to `/`.",
    "/p/{rest}": "Any other address below `/p`: a page with the error.",
    "/attachments/{sha256}": "An attachment's bytes, as a download. `?message=` names a message that has it.",
    "/previews/{sha256}": "A picture for display in a page. `?message=` names a message that has it.",
    "/static/{name}": "Style sheets, scripts and the icon.",
    "/hooks/{client}/{event}": "Receives the event of a hook of a client or of Git. See "
    "[hooks](../hooks.md).",
    "/watch": "Waits up to 30 s for messages after a cursor, for `postroom watch`.",
}
MORE: Final = {
    "/admin/projects/merge": "See [mail](../mail.md#merging-two-projects).",
    "/admin/projects/move": "See [mail](../mail.md#a-folder-that-was-renamed).",
    "/admin/prune": "See [operating](../operating.md#retention).",
}
"""The pages that say more about an address of administration."""
MCP: Final = (
    "`/mcp`",
    "POST",
    "operator, agents, named tokens",
    "The MCP endpoint; the setting `mcp_path` moves it. Below it `/core` lists the tools of daily work and "
    "`/full` every tool; otherwise the setting `profile` decides. `/api` is the same endpoint. Each address "
    "also works with a slash at its end.",
)
REST: Final = (
    (
        "`/v1/openapi.json`",
        "GET, OPTIONS",
        "operator, agents, named tokens, logged-in people",
        "The following addresses, as an OpenAPI document.",
    ),
    (
        "`/v1/events`",
        "GET, OPTIONS",
        "operator, agents, named tokens, logged-in people",
        "The events of a project, as an answer that waits or as a stream. See [Events](../events.md).",
    ),
    (
        "`/v1/{look}`",
        "GET, OPTIONS",
        "operator, agents, named tokens, logged-in people",
        "A mail operation that changes nothing. See [REST](rest.md).",
    ),
    (
        "`/v1/{change}`",
        "OPTIONS, POST",
        "operator, agents, named tokens",
        "An operation that changes something. Body: its fields as JSON.",
    ),
)
OAUTH_WORDS: Final = (
    "Clients request these addresses to find OAuth. The server does not support OAuth and answers 404 "
    "in JSON."
)


CHANNEL_WORDS: Final = {
    Platform.WEB: "a signed-in person's session; the page and what its script calls",
    Platform.API_SERVER: "its `api_key`, as a bearer token; the OpenAI protocol. The addresses of mail "
    "below `/v1` do not change",
    Platform.TELEGRAM: "the webhook's secret; only with `webhook_url`",
    Platform.SLACK: "Slack's signature; only with a `signing_secret`",
    Platform.WEBHOOK: "the signature of the route, or its token",
}
"""The proof that the handlers of a channel's routes require: the routes themselves do not say it."""


class _Absent:
    """Stands where routes keep what they ask only when they are called."""

    def __getattr__(self, name: str) -> None:
        return None


def page() -> str:
    """Return the page."""
    clock = SystemClock()
    store = SqliteStore.in_memory(clock)
    sessions = Sessions(b"", clock, store)
    desk = LoginService(sessions, LoginCodes(store, clock), clock, is_operator=lambda _: False)
    nobody: Any = _Absent()
    services = {one.service: nobody for one in ADMINISTRATION if one.service is not None}
    given = {"registry": nobody, "operations": ADMINISTRATION, "services": services}
    machine = [
        *routes(desk, ready=nobody, clock=clock, **given),
        *hook_routes(nobody, nobody),
        *callback_routes(CALLBACKS, nobody),
    ]
    room = PageServices(
        visitors=nobody, questions=nobody, messages=nobody, runs=nobody, schedules=nobody, push=nobody
    )
    people = page_routes(nobody, clock=clock, services=room)
    rows = [
        MCP,
        *REST,
        *(
            row
            for path, methods in _paths([*machine, *people])
            if not _is_oauth(path)
            for row in _rows(path, methods)
        ),
    ]
    channels = [
        (f"`{open_path.path}`", f"`{platform.value}`", f"{open_path.limit} bytes", CHANNEL_WORDS[platform])
        for platform, adapter in with_addresses().items()
        for open_path in open_paths([adapter])
    ]
    oauth = sorted(path for path, _ in _paths(machine) if _is_oauth(path))
    return f"""
# HTTP

One port serves everything. The server accepts a request if its `Host` is one of the server's hosts, and if it
does not come from a page of another origin (`Origin`). Unless the address is open to anyone, the request must
also identify its sender:

- the operator sends `Authorization: Bearer <the server's token>`: every address;
- an agent sends `Authorization: Bearer <the agent's token>`: the MCP endpoint and the addresses below `/v1`;
- a program sends a named token: the addresses that its [scopes](../security.md#named-tokens) permit. The
  scope `admin` permits those of the operator, except `/admin/tokens` and the pages;
- a person logs in at `/login` and has a signed cookie: the pages with their forms, and the reading addresses
  below `/v1`.

In addition to the server's token, a call of the MCP endpoint or of an address below `/v1` may have the header
`Postroom-Agent-Token`. Every answer has `X-Request-Id`: the caller's own if it is valid, otherwise a new one.
Errors are problem JSON: see [errors](errors.md).

{table(("path", "methods", "permitted for", "effect"), rows)}

## Channels

These addresses, and all below them, exist if the [gateway](../gateway.md) has the channel. They are open to
callers with the proof that the channel requires:

{table(("path", "channel", "largest body", "required proof"), channels)}

## OAuth

{OAUTH_WORDS}

{chr(10).join(f"- `{path}`" for path in oauth)}
"""


WHO: Final = {one.path.replace(":path}", "}"): one.who for one in permissions.table(ALL_OPERATIONS)}
WHO_WORDS: Final = {Who.ANYONE: "anyone", Who.PEOPLE: "operator, logged-in people"}


def _paths(found: Sequence[BaseRoute], base: str = "") -> Iterator[tuple[str, list[str]]]:
    for one in found:
        if isinstance(one, Mount):
            yield from _paths(one.routes, base + one.path)
        elif isinstance(one, Route):
            yield base + one.path.replace(":path}", "}"), sorted((one.methods or set()) - {"HEAD"})


def _is_oauth(path: str) -> bool:
    return ".well-known" in path or path in ("/authorize", "/oauth/token", "/register", "/token")


def _rows(path: str, methods: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the row of an address, or of administration a row for each operation."""
    if path.startswith(CALLBACKS):
        who = "a server that signs with the agent's secret"
    else:
        who = WHO_WORDS.get(WHO[path], "operator")
    operations = [one for one in ADMINISTRATION if one.path == path]
    for one in operations:
        said = f"{one.description}{_fields(one)} {MORE.get(path, '')}"
        yield f"`{path}`", one.method, who, said.strip()
    if not operations:
        yield f"`{path}`", ", ".join(methods), who, ROUTE_WORDS[path]


def _as_phrase(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].rstrip(".")


def _fields(operation: Operation) -> str:
    _, parts = msgspec.json.schema_components([operation.command])
    schema = parts[operation.command.__name__]
    needed = schema.get("required", [])
    named = []
    for name, given in schema["properties"].items():
        facts = [] if name in needed else ["optional"]
        kinds = [given, *given.get("anyOf", ())]
        facts += [", ".join(filter(None, map(str, one["enum"]))) for one in kinds if "enum" in one]
        facts += [_as_phrase(one["description"]) for one in kinds if "description" in one]
        named.append(f"`{name}`" + (f" ({'; '.join(facts)})" if facts else ""))
    place = "Parameters" if operation.method == "GET" else "Body"
    return f" {place}: {', '.join(named)}." if named else ""

"""The page of the HTTP addresses: every route, and for whom the door opens."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from starlette.routing import BaseRoute, Mount, Route

from from_code.markdown import table
from postroom.app.operations import ADMINISTRATION, TABLE
from postroom.contracts.clock import SystemClock
from postroom.contracts.operations import Operation, Who
from postroom.executors.remote import CALLBACKS
from postroom.gateway.platforms import adapter_of
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
    "/readyz": "Store, archive and event loop, looked at at most once a second; 503 when a required one is "
    "not well.",
    "/metrics": "Prometheus text. See [metrics](metrics.md).",
    "/login": "The form that takes the server's token, and the target of one-time links.",
    "/logout": "Ends the session of the browser at every server, by a form of a page.",
    "/callbacks/{dispatch_id}": "Where another server sends the result of a run. See "
    "[runners](../runners.md#another-server).",
    "/": "Projects.",
    "/p/{slug}": "A project's control room: what needs a person, who is on what, who waits for whom.",
    "/p/{slug}/timeline": "What happened in it lately: messages, the runs they began, files held; "
    "`?agent=` or `?thread=`: with one of them.",
    "/p/{slug}/questions": "What its agents wait to be told, and what they were told. `POST` answers: the "
    "form of the page, from people who have logged in.",
    "/p/{slug}/schedules": "What is sent to its agents again and again. `POST` pauses a schedule, resumes it "
    "or sends its message now, by a form as above.",
    "/p/{slug}/runs": "What its agents are at, what waits and why, what was given up. `POST` ends a run or "
    "has one tried again, by a form as above. `?live=1` loads itself again.",
    "/p/{slug}/runs/{run_id}": "A run: how it stands, what it has put out, its answer. `POST` as above. "
    "`?live=1` loads itself again.",
    "/chats": "The open questions and the dead letters of chats.",
    "/chats/{run_id}": "The run of one of them. `POST` answers its question, or replays or discards the dead "
    "letter, by a form as above.",
    "/p/{slug}/write": "A message to be written: `?to=` an agent, `?reply=` to a message. `POST` sends it by "
    "a form as above.",
    "/p/{slug}/agents": "Its agents.",
    "/p/{slug}/agents/{name}": "An agent, its messages, what it holds. `?box=sent` for what it sent.",
    "/p/{slug}/threads": "Its threads, newest first.",
    "/p/{slug}/t/{thread_id}": "A thread, in order.",
    "/p/{slug}/m/{message_id}": "A message.",
    "/p/{slug}/reservations/decide": "Ends a reservation, or has those that overlap shared "
    "(`POST`), by a form of the control room, from people who have logged in.",
    "/p/{slug}/m/{message_id}/mark": "Takes that a person has read a message, or acknowledges it "
    "(`POST`), by a form of its page, from people who have logged in.",
    "/p/{slug}/m/{message_id}/source": "A message's text as it was written, to be stored.",
    "/p/{slug}/tasks/decide": "Accepts or rejects a finished task that waits for a person.",
    "/p/{slug}/tasks": "The open tasks, those to claim first, and the last ended ones. `?task=` for one.",
    "/p/{slug}/reservations": "What is reserved, and what was reserved last. `?path=` for one path.",
    "/p/{slug}/search": "Search: `?q=`, `?order=newest` or `best`.",
    "/p": "Leads to `/`.",
    "/p/{rest}": "Any other address below `/p`: a page that says that there is none.",
    "/attachments/{sha256}": "An attachment's bytes, to be stored. `?message=` names a message that has it.",
    "/previews/{sha256}": "A picture, to be shown within a page. `?message=` names a message that has it.",
    "/static/{name}": "Style sheets, scripts and the icon.",
    "/hooks/{client}/{event}": "The call of a hook of a client or of Git. See [hooks](../hooks.md).",
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
    "`/full` every tool; without either the setting `profile` says which. Also `/api`, and each with a slash "
    "at its end.",
)
REST: Final = (
    (
        "`/v1/openapi.json`",
        "GET, OPTIONS",
        "operator, agents, named tokens, logged-in people",
        "What follows, as an OpenAPI document.",
    ),
    (
        "`/v1/events`",
        "GET, OPTIONS",
        "operator, agents, named tokens, logged-in people",
        "What happens in a project, as an answer that waits or as a stream. See [Events](../events.md).",
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
OAUTH_WORDS: Final = "Where clients look for OAuth: a clean 404 in JSON, since there is none."


CHANNEL_WORDS: Final = {
    Platform.WEB: "a signed-in person's session; the page and what its script calls",
    Platform.API_SERVER: "its `api_key`, as a bearer token; the OpenAI protocol. Mail's addresses "
    "below `/v1` stay as they are",
    Platform.TELEGRAM: "the webhook's secret; only with `webhook_url`",
    Platform.SLACK: "Slack's signature; only with a `signing_secret`",
    Platform.WEBHOOK: "the signature of the route, or its token",
}
CHANNEL_PATHS: Final = {
    Platform.WEB: "/chat",
    Platform.API_SERVER: "/v1",
    Platform.TELEGRAM: "/channels/telegram",
    Platform.SLACK: "/channels/slack",
    Platform.WEBHOOK: "/channels/webhook",
}


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
    room = PageServices(visitors=nobody, questions=nobody, messages=nobody, runs=nobody, schedules=nobody)
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
        (
            f"`{path}`",
            f"`{platform.value}`",
            f"{adapter_of(platform).largest_body} bytes",
            CHANNEL_WORDS[platform],
        )
        for platform, path in CHANNEL_PATHS.items()
    ]
    oauth = sorted(path for path, _ in _paths(machine) if _is_oauth(path))
    return f"""
# HTTP

One port serves everything. A request must name a host that the server knows (`Host`), must not come from a
page of another origin (`Origin`), and must say who sends it unless the address is open to anyone:

- the operator sends `Authorization: Bearer <the server's token>`: every address;
- an agent sends `Authorization: Bearer <the agent's token>`: the MCP endpoint and the addresses below `/v1`;
- a program sends a named token: what its [scopes](../security.md#named-tokens) open, and with
  `admin` what is for the operator, but for `/admin/tokens` and the pages;
- a person logs in at `/login` and has a signed cookie: the pages with their forms, and looks below `/v1`.

Beside the server's token, a call of the MCP endpoint or of an address below `/v1` may carry
`Postroom-Agent-Token`. Every answer carries `X-Request-Id`, the caller's own if it sent a usable one.
Refusals are problem JSON: see [errors](errors.md).

{table(("path", "methods", "for whom", "what"), rows)}

## Channels

These are there when the [gateway](../gateway.md) has the channel, and open to anyone who can prove to the
channel what it asks for. Each with all below it:

{table(("path", "channel", "largest body", "what the channel asks for"), channels)}

## OAuth

{OAUTH_WORDS}

{chr(10).join(f"- `{path}`" for path in oauth)}
"""


WHO: Final = {one.path.replace(":path}", "}"): one.who for one in permissions.table(TABLE)}
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
        who = "who signs with the agent's secret"
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

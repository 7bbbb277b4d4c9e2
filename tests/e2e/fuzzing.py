"""Seeded hostile input: arguments for tools, JSON-RPC messages around them, HTTP requests of any form."""

import base64
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MODERN = "2026-07-28"
METHODS_OF_MCP = (
    "resources/read",
    "resources/read",
    "tools/list",
    "tools/call",
    "prompts/get",
    "prompts/list",
    "ping",
    "initialize",
    "server/discover",
    "completion/complete",
    "logging/setLevel",
    "tasks/get",
    "resources/subscribe",
    "notifications/cancelled",
    "subscriptions/listen",
)
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "fuzz", "version": "0"},
}
LEAK = re.compile(
    r'Traceback|File \\?"[^"]+\\?", line \d|site-packages|/postroom/|pydantic|msgspec|sqlite3|starlette'
    r"|\b[A-Z]\w*(?:Error|Exception|Warning)\b|internal_error|Internal [Ss]erver [Ee]rror|-32603"
)
"""What only the inside of the server would write. No value below holds anything of the kind."""

WORDS = ("lake", "harbor", "please", "review", "Straße", "naïve", "日本語", "ship", "why?", "x")
TEXTS = (
    "",
    " ",
    "\n\n",
    "\t",
    "a",
    "\x00",
    "a\x00b",
    "\x1b[31mred",
    "\x7f",
    "\u2028\u2029\x85",
    "\u202etxt.exe",
    "e\u0301" * 20,
    "👩‍👩‍👧‍👦" * 8,
    "\U0010ffff",
    "\ufeffbom",
    "\ud800",
    "x\udfffy",
    "\udcff",
    "Ａｄａ",
    "İstanbul",
    "ǅ",
    "ﬀ" * 40,
    "a" * 129,
    "a" * 5_000,
    "\u00df" * 3_000,
    "../../etc/passwd",
    "..",
    ".",
    "/",
    "//",
    "///a//b",
    "/..",
    "/a/../b",
    "~",
    "~root/x",
    "C:\\Users\\x",
    "c:/x",
    "\\\\server\\share",
    "\\\\?\\C:\\x",
    "//wsl$/Ubuntu/home/x",
    "/mnt/c/x",
    "/proc/self/mem",
    "/dev/zero",
    "file:///etc/passwd",
    "%2e%2e%2f",
    "a/./b",
    "a//b",
    ".git/config",
    "con",
    "NUL.txt",
    "-rf",
    "--help",
    "$(id)",
    "`id`",
    "${HOME}",
    "%s%n%d",
    "{0.__class__}",
    "{{7*7}}",
    "<script>alert(1)</script>",
    "<PROJECT>",
    "YOUR_PROJECT",
    "'; DROP TABLE messages; --",
    '" OR 1=1 --',
    "null",
    "None",
    "true",
    "0",
    "-1",
    "1.5",
    "1e999",
    "NaN",
    "Infinity",
    "9" * 40,
    "9" * 5_000,
    "１２",
    "@",
    "a@",
    "@a",
    "a@b@c",
    "human:eve",
    "Ada@harbor",
    "Re: Re: Re:",
    "msg-1",
    "msg-999999",
    "0000-00-00T00:00:00Z",
    "9999-12-31T23:59:59.999999Z",
    "2026-02-30",
    "2026-11-21T09:30:00+99:99",
    "-0001-01-01",
    "T",
    "=====",
    "AAAA====",
    "Zm9v",
    "\r\nX-Injected: 1",
    "---\nid: 1\n---\n\n",
    "```\nunclosed",
    "[a](javascript:alert(1))",
    "![x](http://example.invalid/x.png)",
    "| a | b |\n|---|\n| 1",
    "> " * 200 + "deep",
    "*" * 400,
    "[" * 400,
    "<" * 400,
    "# " * 300,
)
QUERIES = (
    '"',
    '""',
    '"unclosed',
    "a AND",
    "AND",
    "OR OR OR",
    "NOT a",
    "a NOT NOT b",
    "NEAR(a b, 3)",
    "NEAR(",
    "subject:",
    "subject:subject:x",
    "nosuch:x",
    "^a",
    "-a +b",
    "a*b*",
    "*",
    "**",
    "(((((((((((a)))))))))))",
    "(" * 200,
    ")" * 50,
    "{a b}:c",
    "a:b:c:d",
    "body:(a OR subject:b)",
    "from:Ada topic:x*",
    "a OR b " * 100,
    "café CAFE\u0301",
    "日本*",
    "\u0000a",
    "'\"'\"'",
    "rowid:1",
    "messages_fts",
    "a" * 999,
)
GLOBS = (
    "src/**",
    "**",
    "**/**/**/*.py",
    "*",
    "?" * 60,
    "[a-z]",
    "[",
    "[!",
    "[]",
    "[]]",
    "[z-a]",
    "[[:alpha:]]",
    "a[/]b",
    "{a,b}",
    "{a,{b,c}}",
    "{" * 20,
    "a\\*b",
    "a\\",
    "!src",
    "a/**b",
    "**a**",
    "*a*a*a*a*a*a*a*a*b",
    "a/" * 120 + "b",
    "port:8080",
    "port:",
    "port:70000",
    "service:db",
    "service:**",
    "C:/x",
    "src//x",
    "./src",
    "src/",
    "/abs",
    "../x",
    "src/../x",
    "[^a]*[!b]?**/[a-f0-9]",
    "\u202e*",
    "É*",
)
NUMBERS = (0, 1, 2, -1, 7, 100, 1000, 1001, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30, 10**400)
ODD = (
    True,
    False,
    None,
    0.0,
    -0.0,
    1.0,
    1.5,
    1e308,
    -1e308,
    5e-324,
    [],
    {},
    [[]],
    [None],
    {"": ""},
    {"a": 1},
)
RAW = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 4_000, "1" * 5_000, "0.1e-400", "-0")
"""Written into the JSON as they are; some of them are no JSON."""
_MARK = "@@raw@@"


@dataclass(slots=True)
class World:
    """What is there to be named: projects, agents, messages and reservations."""

    folder: str
    """A project's folder that is really there, with things in it that must not be read."""
    projects: Sequence[str] = ("fuzz-harbor", "/fuzz/harbor", "/fuzz/shore", "fuzz-shore")
    agents: Sequence[str] = ("Ada", "Ben", "Cyd", "Dan")
    spare: Sequence[str] = ("Spare1", "Spare2", "Spare3")
    files: Sequence[str] = (
        "plain.txt",
        "picture.png",
        "pipe",
        "outside",
        "folder",
        "loop",
        "missing",
        "zero",
    )
    messages: int = 60
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The input schema of each tool."""


class Values:
    """Random values, the same for the same seed."""

    def __init__(self, seed: str, world: World) -> None:
        self.dice = random.Random(seed)
        self.world = world

    def text(self) -> str:
        """Return a text: often a hostile one, sometimes words, now and then a very long one."""
        choice = self.dice.random()
        if choice < 0.55:
            return self.dice.choice(TEXTS)
        if choice < 0.75:
            return " ".join(self.dice.choices(WORDS, k=self.dice.randrange(1, 8)))
        if choice < 0.85:
            return self.dice.choice(QUERIES + GLOBS)
        if choice < 0.99:
            return "".join(chr(self.dice.randrange(0x11_0000)) for _ in range(self.dice.randrange(12)))
        return self.dice.choice("a\u00e9日") * self.dice.choice((20_000, 300_000, 1_100_000))

    def number(self) -> int:
        """Return a whole number."""
        return self.dice.choice(NUMBERS) if self.dice.random() < 0.7 else self.dice.randrange(-5, 120)

    def anything(self, depth: int = 0) -> Any:
        """Return any value that JSON can hold, and some that it cannot."""
        choice = self.dice.random()
        if choice < 0.4:
            return self.text()
        if choice < 0.6:
            return self.number()
        if choice < 0.75:
            return self.dice.choice(ODD)
        if choice < 0.8:
            return f"{_MARK}{self.dice.choice(RAW)}{_MARK}"
        if choice < 0.83:
            return nested(self.dice.choice((6, 9, 40, 190, 240, 2_000)), self.dice.choice(("list", "dict")))
        if depth > 3:
            return None
        size = self.dice.choice((0, 1, 2, 3, 30))
        if choice < 0.92:
            return [self.anything(depth + 1) for _ in range(size)]
        return {self.text()[:40]: self.anything(depth + 1) for _ in range(min(size, 5))}

    def arguments(self, tool: str) -> dict[str, Any]:
        """Return arguments for a tool: mostly of the right form, with something wrong now and then."""
        schema = self.world.tools[tool]
        required = schema.get("required", [])
        found: dict[str, Any] = {}
        for name, wanted in schema["properties"].items():
            if self.dice.random() < (0.97 if name in required else 0.3):
                found[name] = self.argument(tool, name, wanted)
        if self.dice.random() < 0.04:
            found[self.text()[:200]] = self.anything()
        return found

    def argument(self, tool: str, name: str, wanted: Mapping[str, Any]) -> Any:
        """Return one argument: sensible, of the right type, or anything at all."""
        choice = self.dice.random()
        if choice < 0.86 and (known := self._known().get(name)) is not None:
            return known(tool)
        if choice < 0.95:
            return self.fitting(wanted)
        return self.anything()

    def fitting(self, wanted: Mapping[str, Any]) -> Any:
        """Return a value of the type that a schema names."""
        if "enum" in wanted:
            return self.dice.choice(wanted["enum"])
        match wanted.get("type"):
            case "integer" | "number":
                return self.number()
            case "boolean":
                return self.dice.random() < 0.5
            case "array":
                size = self.dice.choice((0, 1, 1, 2, 3, 60))
                return [self.fitting(wanted.get("items", {})) for _ in range(size)]
            case "object":
                inner = wanted.get("properties", {})
                return {one: self.fitting(what) for one, what in inner.items() if self.dice.random() < 0.6}
            case _:
                return self.text()

    def _known(self) -> dict[str, Callable[[str], Any]]:
        pick, world = self.dice.choice, self.world
        whom = world.agents
        return {
            "project_key": lambda _: pick((*world.projects, world.folder)),
            "human_key": lambda _: pick(("/fuzz/harbor", "/fuzz/shore", world.folder)),
            "agent_name": lambda tool: pick(world.spare if "retire" in tool or "policy" in tool else whom),
            "sender_name": lambda _: pick(whom),
            "requester": lambda _: pick(whom),
            "name": lambda _: pick((*world.spare, *whom)),
            "to": lambda tool: pick(whom) if tool == "request_contact" else self._names(),
            "cc": lambda _: self._names(),
            "bcc": lambda _: self._names(),
            "message_id": lambda _: self.dice.randrange(1, world.messages),
            "reservation_id": lambda _: self.dice.randrange(1, world.messages),
            "ids": lambda _: [self.dice.randrange(1, world.messages) for _ in range(3)],
            "thread_id": lambda _: pick(("t1", "t2", f"msg-{self.dice.randrange(1, world.messages)}")),
            "query": lambda _: pick(QUERIES),
            "paths": lambda _: [pick(GLOBS) for _ in range(pick((1, 1, 2, 5, 40)))],
            "reserve_paths": lambda _: [pick(GLOBS) for _ in range(pick((1, 2, 5)))],
            "ttl_seconds": lambda _: pick((1, 60, 3600)),
            "limit": lambda _: pick((1, 5, 50, 1000)),
            "after": lambda _: pick((0, 1, 5, 40)),
            "cursor": lambda _: pick((0, 1, 5, 40)),
            "attachments": lambda _: [self.attachment() for _ in range(pick((1, 1, 2)))],
            "idempotency_key": lambda _: f"key-{self.dice.randrange(50)}",
            "git_identity": lambda _: pick(("", "origin#abc")),
        }

    def _names(self) -> list[str]:
        known = (*self.world.agents, *self.world.spare, "Ada@fuzz-shore")
        return [self.dice.choice(known) for _ in range(self.dice.choice((1, 1, 1, 2, 3)))]

    def attachment(self) -> dict[str, Any]:
        """Return an attachment, of which most must be refused."""
        choice = self.dice.random()
        if choice < 0.5:
            return {"path": self.dice.choice(self.world.files)}
        if choice < 0.8:
            content = self.dice.randbytes(self.dice.randrange(200))
            name = self.dice.choice(("a.png", "a.svg", "a.txt", self.text()[:100]))
            return {"name": name, "content_base64": base64.b64encode(content).decode()}
        return {self.dice.choice(("path", "name", "content_base64")): self.text() for _ in range(2)}

    def message(self) -> tuple[dict[str, str], bytes]:
        """Return headers and body of a request to the MCP endpoint, mostly of a tool call."""
        method, params = self._call()
        document: dict[str, Any] = {"jsonrpc": "2.0", "id": self.number(), "method": method, "params": params}
        headers: dict[str, str] = {}
        era = self.dice.random()
        if era < 0.25:
            params.setdefault("_meta", META)
            headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
            named = params.get("uri" if method == "resources/read" else "name")
            if isinstance(named, str):
                headers["Mcp-Name"] = _header_value(named)
        elif era < 0.4:
            headers = {"MCP-Protocol-Version": self.dice.choice(("2024-11-05", "2025-06-18", "2025-11-25"))}
        if self.dice.random() < 0.06:
            self._spoil(document, headers)
        body = encoded(document)
        if self.dice.random() < 0.01:
            body = self.broken(body)
        return headers, body

    def _call(self) -> tuple[str, dict[str, Any]]:
        if self.dice.random() < 0.88:
            tool = self.dice.choice(list(self.world.tools))
            return "tools/call", {"name": tool, "arguments": self.arguments(tool)}
        method = self.dice.choice(METHODS_OF_MCP)
        if method == "resources/read":
            return method, {"uri": self.uri()}
        if method == "subscriptions/listen" and self.dice.random() < 0.7:
            return method, {"notifications": {"resourceSubscriptions": [self.uri()]}}
        keys = (
            "name",
            "uri",
            "cursor",
            "arguments",
            "protocolVersion",
            "requestId",
            "notifications",
            "level",
        )
        return method, {key: self.anything() for key in keys if self.dice.random() < 0.4}

    def uri(self) -> str:
        """Return the address of a resource, or something like it."""
        kind = self.dice.choice(("inbox", "thread", "agents", "reservations", "project", "nothing"))
        known = (*self.world.projects, *self.world.agents, "t1", "msg-1", self.text()[:200])
        parts = "/".join(self.dice.choice(known) for _ in range(self.dice.randrange(4)))
        return f"mail://{kind}/{parts}".encode("utf-8", "replace").decode()

    def _spoil(self, document: dict[str, Any], headers: dict[str, str]) -> None:
        """Break a message or its headers in one place."""
        place = self.dice.choice(("jsonrpc", "id", "method", "params", "_meta", "header", "drop"))
        if place == "header" and headers:
            headers[self.dice.choice(list(headers))] = self.dice.choice(
                ("x", "", "2099-01-01", "=?base64?!?=")
            )
        elif place == "_meta" and isinstance(document["params"], dict):
            document["params"]["_meta"] = self.anything()
        elif place == "drop":
            document.pop(self.dice.choice(list(document)))
        elif place in document:
            document[place] = self.anything()

    def broken(self, body: bytes) -> bytes:
        """Cut a body, or change bytes of it."""
        cut = self.dice.randrange(len(body) + 1)
        return body[:cut] + self.dice.choice((b"", b"\xff\xfe", b"\x00", b"]}", b"{" * 9, b"[" * 90_000))


def _header_value(text: str) -> str:
    if re.fullmatch(r"[\x20-\x7e]*", text) and text == text.strip():
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'replace')).decode()}?="


def nested(depth: int, kind: str) -> Any:
    """Return lists in lists, or objects in objects."""
    found: Any = "x"
    for _ in range(depth):
        found = [found] if kind == "list" else {"a": found}
    return found


def encoded(document: object) -> bytes:
    """Return a document as JSON, with raw values in their places and broken text as escapes."""
    try:
        text = json.dumps(document)
    except RecursionError:
        text = "[" * 100_000
    return re.sub(f'"{_MARK}(.*?){_MARK}"', r"\1", text).encode()


METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE", "PROPFIND", "get", "X" * 40)
SCHEMES = ("Bearer", "bearer", "Basic", "Digest", "Bearer  ", "")
ROUTES = (
    "/",
    "/login",
    "/logout",
    "/healthz",
    "/readyz",
    "/metrics",
    "/mcp",
    "/mcp/",
    "/mcp/core",
    "/mcp/full",
    "/api/",
    "/api",
    "/admin/status",
    "/admin/agent-token",
    "/admin/login-code",
    "/admin/backup",
    "/admin/rebuild-archive",
    "/admin/prune",
    "/admin/doctor",
    "/admin/nothing",
    "/v1/health_check",
    "/v1/fetch_inbox?project_key=/fuzz/harbor&agent_name=Ada",
    "/v1/send_message",
    "/p/fuzz-harbor",
    "/p/fuzz-harbor/agents",
    "/p/fuzz-harbor/agents/Ada",
    "/p/fuzz-harbor/threads",
    "/p/fuzz-harbor/t/t1",
    "/p/fuzz-harbor/m/1",
    "/p/fuzz-harbor/m/1/source",
    "/p/fuzz-harbor/reservations",
    "/p/fuzz-harbor/search",
    "/p/nothing",
    "/attachments/" + "0" * 64,
    "/previews/" + "a" * 64,
    "/static/postroom.css",
    "/static/../token",
    "/.well-known/oauth-authorization-server",
    "/.well-known/oauth-protected-resource/mcp",
    "/authorize",
    "/oauth/token",
    "/register",
    "/favicon.ico",
    "/..",
    "//",
    "*",
    "http://other.invalid/",
)
POSTED = (
    "/admin/agent-token",
    "/admin/login-code",
    "/admin/backup",
    "/admin/prune",
    "/admin/rebuild-archive",
)
SEGMENTS = (
    "%00",
    "%2e%2e",
    "..",
    ".",
    "%2F",
    "%",
    "%zz",
    "%ff",
    "%F0%9F%98%80",
    "\\",
    "a" * 300,
    "9" * 400,
    "é",
)
QUERY_STRINGS = (
    "",
    "after=1",
    "after=-1",
    "after=" + "9" * 30,
    "after=x&after=y",
    "q=%22unclosed",
    "q=NEAR(",
    "q=" + "%28" * 300,
    "q=a*&order=best",
    "order=worst",
    "box=sent&before=5",
    "cursor=99999999999999999999",
    "newest=1",
    "path=**%2F**",
    "message=1&name=%0d%0aX-Y:1",
    "code=prl_x",
    "=&=&;&&",
    "%",
    "a" * 9_000,
    "q=%ff%fe",
    "q=\u00e9",
)
HEADERS = (
    ("Accept", ("*/*", "text/html", "application/json", "text/event-stream", "x", "", "a/b;q=zz")),
    (
        "Content-Type",
        ("application/json", "text/plain", "application/x-www-form-urlencoded", "", "application/json,"),
    ),
    ("Origin", ("null", "http://evil.invalid", "http://127.0.0.1:1", "file://", "http://[::1", "")),
    ("Cookie", ("a=b", "postroom_x=1.2.3", ";;;", "a" * 3_000, "=")),
    ("X-Request-Id", ("abc", "a" * 65, "x y", "", "\u00e9")),
    ("MCP-Protocol-Version", ("2026-07-28", "2025-06-18", "1", "", "\u00ff")),
    ("Mcp-Method", ("tools/call", "x", "")),
    ("Postroom-Agent-Token", ("pra_x", "", "\u00e9")),
    ("If-None-Match", ('"x"', "*", "W/")),
    ("Range", ("bytes=0-", "bytes=-1", "bytes=9-1,2-", "x")),
    ("Expect", ("100-continue", "x")),
    ("Upgrade", ("websocket", "h2c")),
    ("Connection", ("close", "Upgrade", "keep-alive, x")),
    ("X-Forwarded-For", ("1.2.3.4", "x")),
    ("X-Forwarded-Host", ("evil.invalid",)),
    ("X-Big", ("b" * 9_000,)),
    ("Host", ("evil.invalid", "127.0.0.1:1", "[::1]", "", "localhost", "a b", "127.0.0.1:99999")),
)
GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 60,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET  / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost\r\n\r\n",
    b"GET / HTTP/1.1\r\n: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n",
    b"\r\n\r\n\r\n",
    b"\x00" * 200,
    b"A" * 100_000,
    b"GET /" + b"a" * 90_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\nhello",
    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5x\r\n\r\nhello",
    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999999999999\r\n\r\nhello",
    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 20,
    b"CONNECT other.invalid:443 HTTP/1.1\r\nHost: other.invalid:443\r\n\r\n",
)
"""Whole or half, in no form that a client has; the server may answer or hang up."""


@dataclass(frozen=True, slots=True)
class Shot:
    """One HTTP request as bytes; one that is not `sound` may be answered by hanging up."""

    raw: bytes
    method: str
    sound: bool


class Requests:
    """Random HTTP requests, the same for the same seed."""

    def __init__(self, values: Values, *, host: str, token: str, scratch: str) -> None:
        self._values = values
        self._dice = values.dice
        self._host = host
        self._token = token
        self._scratch = scratch

    def shot(self) -> Shot:
        """Return a request: one in ten is no HTTP at all."""
        choice = self._dice.random()
        if choice < 0.06:
            return Shot(self._dice.choice(GARBAGE), "GET", sound=False)
        if choice < 0.1:
            return Shot(self._dice.randbytes(self._dice.randrange(1, 600)), "GET", sound=False)
        path = self._dice.choice(ROUTES)
        if self._is_slow(path) and self._dice.random() < 0.9:
            path = "/admin/status"
        method = self._dice.choice(METHODS) if self._dice.random() < 0.2 else self._usual(path)
        body = self.body(path) if method not in ("GET", "HEAD") or self._dice.random() < 0.05 else b""
        raw, sound = self._written(method, self._target(path), body)
        return Shot(raw, method, sound)

    @staticmethod
    def _is_slow(path: str) -> bool:
        """Whether the route does work that grows with what is stored; asked now and then."""
        return path in ("/admin/backup", "/admin/doctor", "/admin/rebuild-archive")

    def _usual(self, path: str) -> str:
        """Return the method that a route is there for."""
        posted = path.startswith(("/mcp", "/api", "/log")) or path in POSTED
        return "POST" if posted and self._dice.random() < 0.9 else "GET"

    def _target(self, path: str) -> str:
        if self._dice.random() < 0.1:
            path += "/" + "/".join(self._dice.choices(SEGMENTS, k=self._dice.randrange(1, 4)))
        if self._dice.random() < 0.35:
            path += "?" + self._dice.choice(QUERY_STRINGS)
        return path

    def body(self, path: str) -> bytes:
        """Return a body that fits the route, or none at all."""
        values, choice = self._values, self._dice.random()
        if path.startswith("/admin"):
            # A backup is written wherever the operator says: nowhere else than here.
            places = (f"{self._scratch}/b{self._dice.randrange(40)}.db", "relative", "", "\x00", 5, None, "/")
            known = {"target": self._dice.choice(places), "project": "fuzz-harbor", "agent": "Ada", "x": []}
            keys = self._dice.sample(list(known), k=self._dice.randrange(len(known) + 1))
            return encoded({key: known[key] for key in keys}) if choice < 0.8 else b'{"target": [}'
        if path.startswith("/log"):
            return self._dice.choice((b"token=x", b"token=%ff", b"token", b"&&=", b"token=" + b"a" * 20_000))
        if choice < 0.5:
            return values.message()[1]
        if choice < 0.7:
            return encoded(values.anything())
        return self._dice.randbytes(self._dice.randrange(300))

    def _written(self, method: str, target: str, body: bytes) -> tuple[bytes, bool]:
        headers = {"Host": self._host}
        if self._dice.random() < 0.9:
            headers["Authorization"] = f"Bearer {self._token}"
        elif self._dice.random() < 0.6:
            headers["Authorization"] = f"{self._dice.choice(SCHEMES)} {self._values.text()[:80]}"
        for name, choices in self._dice.sample(HEADERS, k=self._dice.choice((0, 0, 0, 1, 1, 3))):
            headers[name] = self._dice.choice(choices)
        sound = True
        if body or method in ("POST", "PUT", "PATCH"):
            headers["Content-Length"] = str(len(body))
            if self._dice.random() < 0.05:
                headers["Content-Length"] = self._dice.choice(
                    ("0", "1", "-1", "x", "1e3", str(len(body) + 50))
                )
                sound = False
        rows = [f"{method} {target} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
        rows = [re.sub(r"[\r\n\0]", "", row) for row in rows]
        # What HTTP itself forbids in a head may end the connection.
        sound = sound and all(re.fullmatch(r"[\x21-\x7e][\x20-\x7e]*", row) for row in rows)
        return "\r\n".join(rows).encode("utf-8", "replace") + b"\r\n\r\n" + body, sound

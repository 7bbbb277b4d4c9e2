"""Seeded hostile input: arguments for tools."""

import base64
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LEAK = re.compile(
    r'Traceback|File \\?"[^"]+\\?", line \d|site-packages|/postroom/|pydantic|msgspec|sqlite3|starlette'
    r"|\b[A-Z]\w*(?:Error|Exception|Warning)\b|internal_error|Internal [Ss]erver [Ee]rror|-32603"
)
"""Fields that only the inside of the server would write. No value below holds anything of the kind."""

WORDS = ("lake", "harbor", "please", "review", "Straße", "naïve", "日本語", "ship", "why?", "x")
_PLAIN_TEXTS = """
a ../../etc/passwd .. . / // ///a//b /.. /a/../b ~ ~root/x c:/x //wsl$/Ubuntu/home/x /mnt/c/x
/proc/self/mem /dev/zero file:///etc/passwd %2e%2e%2f a/./b a//b .git/config con NUL.txt -rf
--help $(id) `id` ${HOME} %s%n%d {0.__class__} {{7*7}} <script>alert(1)</script> <PROJECT>
YOUR_PROJECT null None true 0 -1 1.5 1e999 NaN Infinity @ a@ @a a@b@c human:eve Ada@harbor
msg-1 msg-999999 0000-00-00T00:00:00Z 9999-12-31T23:59:59.999999Z 2026-02-30
2026-11-21T09:30:00+99:99 -0001-01-01 T ===== AAAA==== Zm9v [a](javascript:alert(1))
![x](http://example.invalid/x.png)
"""
TEXTS = (
    "",
    " ",
    "\n\n",
    "\t",
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
    "C:\\Users\\x",
    "\\\\server\\share",
    "\\\\?\\C:\\x",
    "'; DROP TABLE messages; --",
    '" OR 1=1 --',
    "9" * 40,
    "9" * 5_000,
    "１２",
    "Re: Re: Re:",
    "\r\nX-Injected: 1",
    "---\nid: 1\n---\n\n",
    "```\nunclosed",
    "| a | b |\n|---|\n| 1",
    "> " * 200 + "deep",
    "*" * 400,
    "[" * 400,
    "<" * 400,
    "# " * 300,
    *_PLAIN_TEXTS.split(),
)
_PLAIN_QUERIES = """
AND NEAR( subject: subject:subject:x nosuch:x ^a a*b* * ** (((((((((((a))))))))))) a:b:c:d
rowid:1 messages_fts
"""
QUERIES = (
    '"',
    '""',
    '"unclosed',
    "a AND",
    "OR OR OR",
    "NOT a",
    "a NOT NOT b",
    "NEAR(a b, 3)",
    "-a +b",
    "(" * 200,
    ")" * 50,
    "{a b}:c",
    "body:(a OR subject:b)",
    "from:Ada topic:x*",
    "a OR b " * 100,
    "café CAFE\u0301",
    "日本*",
    "\u0000a",
    "'\"'\"'",
    "a" * 999,
    *_PLAIN_QUERIES.split(),
)
_PLAIN_GLOBS = """
src/** ** **/**/**/*.py * [a-z] [ [! [] []] [z-a] [[:alpha:]] a[/]b {a,b} {a,{b,c}} !src a/**b
**a** *a*a*a*a*a*a*a*a*b port:8080 port: port:70000 service:db service:** C:/x src//x ./src
src/ /abs ../x src/../x [^a]*[!b]?**/[a-f0-9]
"""
GLOBS = (
    "?" * 60,
    "{" * 20,
    "a\\*b",
    "a\\",
    "a/" * 120 + "b",
    "\u202e*",
    "É*",
    *_PLAIN_GLOBS.split(),
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
"""Written into the JSON unchanged; some of them are not JSON."""
_MARK = "@@raw@@"


@dataclass(slots=True)
class World:
    """The existing names: projects, agents, messages and reservations."""

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

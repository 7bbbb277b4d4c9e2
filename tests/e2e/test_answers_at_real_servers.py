"""Questions at two real servers of one PostgreSQL: answers on all surfaces at once, and servers that are killed in the meantime.

Each example is one question, which a run, a chat or a client's agent asks. Several people answer it at the same moment, at
both servers. A server may be killed between the moment when the question is shown and the answers, or during the answers. The
question then has exactly one answer, by a person who may answer it, all surfaces show it within two seconds, and the agent gets it once.
"""

import asyncio
import json
import os
import secrets as random_ids
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
import mcp
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult

from e2e.commands import run_here
from e2e.running import RunningServer, plain_environment, soon
from e2e.test_gateway_server import CHAT_TOKEN, secret
from machine import PATIENCE, Bound
from store_kinds import refuse_missing

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_600)]

AGREE_S: Final = 2.0
"""Seconds after an answer within which every surface shows it."""
PEOPLE: Final = ("ana", "ben")
OWNER: Final = "ada"
"""The person of the web chat, who may answer every question there."""
PRICE: Final = {
    "type": "object",
    "properties": {"amount": {"type": "integer"}, "currency": {"type": "string", "enum": ["EUR", "USD"]}},
    "required": ["amount"],
}
KINDS: Final[dict[str, dict[str, Any]]] = {
    "yes_no": {},
    "action": {"action": "DROP TABLE payments_old"},
    "choice": {"choices": ["EUR", "USD"]},
    "text": {"text": True},
    "form": {"form": PRICE},
}
WORDS: Final[dict[str, tuple[str, ...]]] = {
    "yes_no": ("yes", "no", ""),
    "action": ("yes", "no", "perhaps"),
    "choice": ("EUR", "USD", "GBP"),
    "text": ("as before", "another way", ""),
    "form": ("amount = 5", "amount = 7", "amount = five"),
}
"""For each kind two valid answers and an invalid answer."""
LIMITS: Final[tuple[dict[str, Any], ...]] = ({}, {"to": ["human:ana"]}, {"not_by": ["human:ben"]})
SURFACES: Final = {
    "mail": ("page", "rest", "cli", "chat", "mail"),
    "chat": ("page", "rest", "cli", "chat", "button"),
    "client": ("page", "rest", "cli", "chat", "window"),
}
"""The surfaces on which a question is shown, by the way in which it is asked."""
AGENT: Final = """
import http.client, json, os, sys, urllib.parse
said = sys.stdin.read()
if "You asked a person" in said:
    with open("journal", "a") as journal:
        journal.write(json.dumps(said) + "\\n")
    print("I go on.")
elif "{" in said:  # otherwise it is a reply that was no answer
    at = http.client.HTTPConnection(urllib.parse.urlsplit(os.environ["POSTROOM_URL"]).netloc)
    asks = json.loads(said[said.index("{"):said.rindex("}") + 1])
    asks |= {"project_key": os.environ["POSTROOM_PROJECT"], "agent_name": os.environ["POSTROOM_AGENT"]}
    asks["run_id"] = os.environ["POSTROOM_RUN"]
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ask_person", "arguments": asks}}
    shown = {"Authorization": "Bearer " + os.environ["POSTROOM_TOKEN"], "Content-Type": "application/json",
             "Accept": "application/json, text/event-stream"}
    at.request("POST", "/mcp/full", json.dumps(call), shown)
    answer = at.getresponse()
    assert answer.status == 200 and b'"isError":true' not in answer.read()
    print("I wait.")
"""


class Answer(NamedTuple):
    """The act of one person at the moment of the race."""

    surface: str
    server: int
    by: str
    words: int
    """The place of the words in `WORDS`; the last do not fit."""


class Place:
    """Two servers of one database, a project with an agent in mail and chats, and people who answer."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.yard, self.schema = folder / "yard", f"answers_{os.getpid()}"
        self.yard.mkdir()
        (self.yard / "agent.py").write_text(AGENT)
        self.environment = {
            **plain_environment(folder),
            "POSTROOM_DATABASE_URL": dsn,
            "POSTROOM_DATABASE_SCHEMA": self.schema,
        }
        self.servers = list[RunningServer]()
        self.seen = Counter[str]()
        for name in ("one", "two"):
            data = folder / name
            data.mkdir(mode=0o700)
            secret(data, "chat.token", CHAT_TOKEN)
            secret(data, "token", "prm_" + "t" * 43)
            (data / "gateway.toml").write_text(
                f'[agent]\nrun = "Ash@{self.yard}"\n[platforms.web]\ntoken_file = "chat.token"\nname = "{OWNER}"\n'
            )
            self.servers.append(RunningServer(data, environment=self.environment))

    def set_up(self) -> None:
        with self.servers[0].line() as line:
            self.slug = line.crew(str(self.yard), "Ada", "Ash", "Cli")
            runner = {"argv": [sys.executable, "-I", "-S", "agent.py"], "cwd": str(self.yard)}
            asked = {"project": str(self.yard), "agent": "Ash", "runner": runner}
            assert line.order("PUT", "/admin/runners", asked).status == 200
            for name in PEOPLE:
                made = line.order("PUT", "/admin/people", {"name": name})
                assert made.status == 200, made

    def listed(self, server: RunningServer) -> list[dict[str, Any]]:
        with server.line() as line:
            return list(line.request("GET", "/admin/questions").json()["questions"])

    def told(self, text: str) -> list[str]:
        """Return what the agent was notified about a question."""
        journal = self.yard / "journal"
        lines = journal.read_text().splitlines() if journal.exists() else []
        return [one for one in map(json.loads, lines) if text in one]

    @contextmanager
    def browser(self, server: RunningServer) -> Iterator[httpx2.Client]:
        """Return the browser of a person who has logged in."""
        with server.line() as line:
            link = line.order("POST", "/admin/login-code", {}).json()["url"]
        with httpx2.Client(base_url=server.url, timeout=PATIENCE, follow_redirects=True) as browser:
            browser.headers |= {"Accept": "text/html", "Origin": server.url}
            assert browser.get(link).status_code == 200
            yield browser

    @contextmanager
    def chat(self, server: RunningServer) -> Iterator[httpx2.Client]:
        """Return the browser of the person of the web chat."""
        with httpx2.Client(base_url=server.url, timeout=PATIENCE) as browser:
            own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
            assert browser.post("/chat/sign-in", data={"token": CHAT_TOKEN}, headers=own).status_code == 303
            browser.headers["X-Postroom"] = "1"
            yield browser


@pytest.fixture(scope="module")
def place(postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    refuse_missing("postgres")
    made = Place(tmp_path_factory.mktemp("answers"), postgres_dsn)
    with made.servers[0], made.servers[1]:
        made.set_up()
        yield made
    for server in made.servers:
        assert "Traceback" not in server.log(), server.log()[-4_000:]
    with psycopg.connect(postgres_dsn, autocommit=True) as session:
        session.execute(f"DROP SCHEMA {made.schema} CASCADE")


class Question:
    """One question, from the moment when it is asked until its answer has reached the agent."""

    def __init__(self, place: Place, asked_in: str, kind: str, limits: dict[str, Any], kill: str) -> None:
        self.place, self.asked_in, self.kind, self.limits, self.kill = place, asked_in, kind, limits, kill
        self.text = f"May I go on with {random_ids.token_hex(6)}?"
        self.opened, self.result = threading.Event(), list[Any]()
        self.replies: dict[str, Any] | None = None
        """The answer of the window."""

    def takes(self, answer: Answer) -> bool:
        """Return whether an answer may be the accepted answer."""
        by = OWNER if answer.surface in ("chat", "button") else answer.by
        if answer.words == 2 or answer.surface not in SURFACES[self.asked_in]:
            return False
        if answer.surface == "button" and not self._button(WORDS[self.kind][answer.words]):
            return False
        if answer.surface == "window":
            return not self.limits
        named = f"human:{by}"
        return named not in self.limits.get("not_by", ()) and named in self.limits.get("to", [named])

    def ask(self) -> None:
        arguments = {"question": self.text, **KINDS[self.kind], **self.limits}
        if self.asked_in == "mail":
            with self.place.servers[0].line() as line:
                said = {"project_key": str(self.place.yard), "sender_name": "Ada", "subject": "Go on"}
                line.tool("send_message", **said, to=["Ash"], body_md=json.dumps(arguments))
        elif self.asked_in == "chat":
            with self.place.chat(self.place.servers[0]) as browser:
                said = {"id": random_ids.token_hex(12), "text": json.dumps(arguments)}
                assert browser.post("/chat/messages", json=said).status_code == 202
        else:
            arguments |= {"project_key": str(self.place.yard), "agent_name": "Cli"}
            self.window = threading.Thread(target=self._in_window, args=[arguments])
            self.window.start()

        def listed() -> dict[str, Any] | None:
            found = self.place.listed(self.place.servers[0])
            return next((one for one in found if one["question"] == self.text), None)

        self.asked = soon(listed, "the question is listed")
        self.number, self.run_id = self.asked["number"], self.asked["run_id"]

    def _in_window(self, arguments: dict[str, Any]) -> None:
        """Make the agent of a client ask; its person answers in its window when the others answer."""
        server = self.place.servers[0]

        async def window(_: Any, __: Any) -> ElicitResult:
            await asyncio.to_thread(self.opened.wait, PATIENCE)
            if self.replies is None:
                return ElicitResult(action="decline")
            return ElicitResult(action="accept", content=self.replies)

        async def call() -> None:
            headers = {"Authorization": f"Bearer {server.token}"}
            async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http:
                transport = streamable_http_client(f"{server.url}/mcp", http_client=http)
                async with mcp.Client(transport, elicitation_callback=window) as client:
                    answer = await client.call_tool("ask_person", arguments)
                    self.result.append(answer.structured_content)

        with suppress(Exception):  # the server may be killed while the window is open
            asyncio.run(call())

    def answer(self, answer: Answer) -> None:
        """Answer on a surface. It may fail only at a server that is killed in the meantime."""
        server, words = self.place.servers[answer.server], WORDS[self.kind][answer.words]
        may_fail = (Exception,) if self.kill == "with" and answer.server == 1 else ()
        with suppress(*may_fail):
            getattr(self, f"_by_{answer.surface}")(server, words, answer.by)

    def _by_page(self, server: RunningServer, words: str, by: str) -> None:
        with self.place.browser(server) as browser:
            is_chat = not self.asked["project"]
            path = f"/chats/{self.run_id}" if is_chat else f"/p/{self.place.slug}/questions"
            page = browser.get("/chats" if is_chat else path).text
            token = page.partition('name="form_token" value="')[2].partition('"')[0]
            form = {"form_token": token, "run": self.run_id, "number": self.number, "by": by}
            form |= {"do": "answer"} if is_chat else {}
            if self.kind == "form":
                form |= {"names": "amount", "v0": words.partition(" = ")[2]}
            else:
                form["answer"] = words
            assert browser.post(path, data=form).status_code < 500

    def _by_rest(self, server: RunningServer, words: str, by: str) -> None:
        with server.line() as line:
            given = {"number": self.number, "answer": words, "by": by}
            assert line.order("POST", "/admin/questions", given).status < 500

    def _by_cli(self, server: RunningServer, words: str, by: str) -> None:
        given = [words.replace(" = ", "=")] if words else []
        command = ["questions", "answer", self.number, *given, "--by", by, "--json"]
        subprocess_environment = {**self.place.environment, "POSTROOM_DATA_DIR": str(server.data_dir)}
        with _COMMANDS:
            assert run_here(*command, environment=subprocess_environment).returncode in range(70)

    def _by_chat(self, server: RunningServer, words: str, by: str) -> None:
        with self.place.chat(server) as browser:
            said = {"id": random_ids.token_hex(12), "text": f"/answer {self.number} {words}"}
            browser.post("/chat/messages", json=said)

    def _button(self, words: str) -> str:
        """Return the value of the button with these words, or "" if the card has no such button."""
        if self.kind in ("yes_no", "action") and words in ("yes", "no"):
            return f"{'approve' if words == 'yes' else 'deny'} {self.number}"
        if self.kind == "choice" and words in KINDS["choice"]["choices"]:
            return f"answer {self.number} {1 + KINDS['choice']['choices'].index(words)}"
        return ""

    def _by_button(self, server: RunningServer, words: str, by: str) -> None:
        """Press a button of the card; a page that is not up to date still shows the buttons of an answered card."""
        value = self._button(words)
        with self.place.chat(server) as browser:
            card = self._card(browser)
            is_shown = value in [one["value"] for one in card["buttons"]]
            assert is_shown or not value or self.record(server)["state"] != "open", card
            pressed = {"value": value, "message_id": card["id"], "press_id": random_ids.token_hex(12)}
            if value:
                browser.post("/chat/buttons", json=pressed)

    def _by_mail(self, server: RunningServer, words: str, by: str) -> None:
        with server.line() as line:
            whom = {"project_key": str(self.place.yard), "agent_name": "Ada", "include_bodies": True}
            asks = next(
                one for one in line.tool("fetch_inbox", **whom, limit=500) if self.text in one["body_md"]
            )
            code = line.order("POST", "/admin/login-code", {}).json()["url"]
        with httpx2.Client(base_url=server.url, timeout=PATIENCE, follow_redirects=True) as browser:
            browser.headers |= {"Accept": "text/html", "Origin": server.url}
            browser.get(code)
            path = f"/p/{self.place.slug}/write"
            page = browser.get(path, params={"reply": asks["id"]}).text
            token = page.partition('name="form_token" value="')[2].partition('"')[0]
            key = random_ids.token_urlsafe(18)
            form = {"form_token": token, "key": key, "name": by, "reply": str(asks["id"]), "body": words}
            sent = browser.post(path, data=form)
            assert "sent=" in str(sent.url) or not words, sent.text

    def _by_window(self, server: RunningServer, words: str, by: str) -> None:
        self.replies = {"amount": words.partition(" = ")[2]} if self.kind == "form" else {"answer": words}
        self.opened.set()

    def _card(self, browser: httpx2.Client) -> dict[str, Any]:
        """Return the card of the question, which a chat keeps when the question has been answered."""
        bound = Bound(PATIENCE)
        with browser.stream("GET", "/chat/events") as events:
            for line in events.iter_lines():  # an open chat gets a line every few seconds
                entry = json.loads(line[6:]) if line.startswith("data: ") else {}
                if entry.get("kind") == "card" and self.text in entry["text"]:
                    return entry
                assert not bound.has_passed(), "the card was not shown"
        raise AssertionError("the stream of the chat ended without the card")

    def records(self) -> list[dict[str, Any]]:
        """Return the question's record, as each server shows it."""
        return [self.record(server) for server in self.place.servers]

    def record(self, server: RunningServer) -> dict[str, Any]:
        with server.line() as line:
            answer = line.request("GET", f"/admin/questions/one?number={self.number}")
        assert answer.status == 200, answer
        return dict(answer.json())

    def agree(self) -> dict[str, Any]:
        """Wait until all surfaces show the same; return the record of the question."""
        bound = Bound(AGREE_S)
        while True:
            records = self.records()
            is_open = records[0]["state"] == "open"
            differ = [] if records[0] == records[1] else [("record", records)]
            for server in self.place.servers:
                if (self.number in [one["number"] for one in self.place.listed(server)]) is not is_open:
                    differ.append(("rest", server.url))
                with self.place.browser(server) as browser:
                    path = f"/p/{self.place.slug}/questions" if self.asked["project"] else "/chats"
                    if (f'id="q-{self.number}"' in browser.get(path).text) is not is_open:
                        differ.append(("page", server.url))
            if not differ:
                return records[0]
            assert not bound.has_passed(), differ


_COMMANDS = threading.Lock()
"""The command line runs in this process, whose environment it changes."""


def _answers(asked_in: str) -> st.SearchStrategy[list[Answer]]:
    one = st.builds(
        Answer,
        st.sampled_from(SURFACES[asked_in]),
        st.integers(0, 1),
        st.sampled_from(PEOPLE),
        st.sampled_from([0, 1, 0, 1, 2]),
    )
    return st.lists(one, min_size=1, max_size=4)


WORLDS: Final = st.sampled_from(sorted(SURFACES)).flatmap(
    lambda asked_in: st.tuples(
        st.just(asked_in),
        st.sampled_from(sorted(KINDS)),
        st.sampled_from(LIMITS),
        _answers(asked_in),
        st.sampled_from(["", "", "before", "with"]),
        st.booleans(),
    )
)


def _killed(server: RunningServer) -> None:
    server.kill()
    server.start()


def _play(
    place: Place, asked_in: str, kind: str, limits: Any, answers: list[Answer], kill: str, back: bool
) -> None:
    question = Question(place, asked_in, kind, limits, kill)
    question.ask()
    victim = place.servers[1]
    if kill == "before":
        _killed(victim)
    calls: list[Callable[[], None]] = [lambda one=one: question.answer(one) for one in answers]
    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(call) for call in calls]
        if kill == "with":
            waiting.append(threads.submit(_killed, victim))
        for one in waiting:
            one.result(PATIENCE)
    may = [one for one in answers if question.takes(one)]
    surely = [one for one in may if kill != "with" or one.server == 0 or one.surface == "window"]
    if surely:
        soon(lambda: question.records()[0]["state"] != "open", "an answer counts")
    record = question.agree()
    place.seen[f"asked in {asked_in}, killed {kill or 'nothing'}: {record['where'] or 'open'}"] += 1
    assert record["state"] == "open" or may, record
    if record["state"] != "open":
        where = {"page": "on the pages", "rest": "over HTTP", "cli": "at the command line"}
        where |= {
            "chat": "in a chat",
            "button": "in a chat",
            "mail": "by mail",
            "window": "in the window of the client",
        }
        given = [(where[one.surface], one.by, one.surface) for one in may]
        by = record["answered_by"]
        assert any(
            record["where"] == place_ and (by == name or surface in ("chat", "button", "window"))
            for place_, name, surface in given
        ), (record, answers)
        if back and record["where"] == "on the pages" and record["can_take_back"]:
            with place.browser(place.servers[0]) as browser:
                path = f"/p/{place.slug}/questions"
                page = browser.get(path).text
                token = page.partition('name="form_token" value="')[2].partition('"')[0]
                answer_id = page.partition('name="answer_id" value="')[2].partition('"')[0]
                form = {
                    "form_token": token,
                    "answer_id": answer_id,
                    "do": "take_back",
                    "run": question.run_id,
                    "number": question.number,
                }
                assert browser.post(path, data=form).status_code in (200, 409)
            record = question.agree()
    if record["state"] == "open":
        question.answer(Answer("rest", 0, "ana", 0))
        record = question.agree()
        assert (record["state"], record["answered_by"]) == ("answered", "ana"), record
    question.opened.set()
    if asked_in == "client":
        question.window.join(PATIENCE)
        assert not question.window.is_alive()
    else:
        soon(lambda: place.told(question.text), "the agent gets the answer")
        told, *again = place.told(question.text)
        with place.servers[0].line() as line:
            work = line.request("GET", f"/admin/runs/one?run={question.run_id}").json()
        # Only an execution that was cut off is repeated, with the same answer.
        assert set(again) <= {told}, (record, told, again)
        assert len(again) <= work["interruptions"], (record, work, told)
        words = {True: "The answer is yes", False: "The answer is no"}.get(
            record["approved"], record["answer"]
        )
        assert words in told, (record, told)


@pytest.mark.parametrize("examples", [4, 60])
def test_each_question_gets_one_answer_by_somebody_who_may_and_every_surface_shows_it(
    place: Place, examples: int
) -> None:
    @settings(
        max_examples=int(os.environ.get("POSTROOM_EXAMPLES", examples)),
        deadline=None,
        phases=[Phase.explicit, Phase.generate],  # each example takes seconds, so none is made smaller
        suppress_health_check=list(HealthCheck),
    )
    @given(WORLDS)
    def play(world: Any) -> None:
        _play(place, *world)

    play()
    print(*sorted(place.seen.items()), sep="\n")

"""Writes the files of the first build that `test_first_build.py` opens: run once, with commit a3983a6.

    git worktree add ../first-build a3983a6
    PYTHONPATH=../first-build/src:tests .venv/bin/python tests/migrations/first_build/make.py

A real `postroom up` of that commit is driven over HTTP, MCP, the command line and a chat, and is killed in the
middle of its work; so is a process with a gateway on PostgreSQL. What they left is packed beside this file:

    data.tar.xz       the data folder: database with its log, archive, tokens, gateway.toml, run notes
    postgres.sql.xz   `pg_dump` of the schema that runs and chats have on PostgreSQL
    expected.json     what must be there afterwards, and what must happen then

It is kept to say how the files came to be; the code of today does not have to run it.
"""

import asyncio
import contextlib
import json
import lzma
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from channels.fake_telegram import SILENCE, TOKEN, FakeTelegram, Refusal, update
from e2e.running import Cut, RunningServer, plain_environment
from e2e.test_gateway_server import on_a_loop_of_its_own, secret
from postgres_server import PostgresServer

HERE = Path(__file__).parent
HARBOUR, SHIPYARD = "/first-build/harbour", "/first-build/shipyard"
SLUG = "first-build-harbour"
PATIENCE = 60.0
PROGRAM = (
    'said="$(cat)"; while [ -e "$FIRST_BUILD_DESK/$POSTROOM_AGENT.hold" ]; do sleep 0.05; done; '
    'if [ -e "$FIRST_BUILD_DESK/$POSTROOM_AGENT.busy" ]; then exit 75; fi; '
    'if [ "$POSTROOM_AGENT" = Di ]; then echo "the lamp is broken" >&2; exit 3; fi; '
    'echo "done by $POSTROOM_AGENT"'
)
"""Every agent that is run; it waits as long as this script wants it to, and nowhere else."""
RUNNERS = ("Bo", "Cy", "Di", "Gil", "Hal", "Ike", "Kim", "Lea", "Max")
CREW = ("Ada", "Ben", "Cleo", "Dora", *RUNNERS)
FEW = 'max_reservation_ttl = "3650d"\ntelemetry = true\ntelemetry_endpoint = "http://127.0.0.1:9"\n[[budgets]]\nper = "all"\nruns = 100000\n'
PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001"
    "a5f645400000000049454e44ae426082"
)


def soon(look: Callable[[], Any]) -> Any:
    """Look until there is something."""
    pause, until = threading.Event(), time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if found := look():
            return found
        pause.wait(0.02)
    raise AssertionError("it did not happen in time")


class Maker:
    """A server of the first build, its data folder, and a chat in front of it."""

    def __init__(self, home: Path, fake: FakeTelegram, loop: asyncio.AbstractEventLoop) -> None:
        self.home, self.fake, self._loop = home, fake, loop
        self.data, self.desk = home / "data", home / "desk"
        self.desk.mkdir()
        self.data.mkdir(mode=0o700)
        os.environ["FIRST_BUILD_DESK"] = str(self.desk)
        (home / "config" / "postroom").mkdir(parents=True)
        (home / "config" / "postroom" / "config.toml").write_text(FEW)
        secret(self.data, "bot.token", TOKEN)
        (self.data / "gateway.toml").write_text(
            f'[agent]\nrun = "Gil@{HARBOUR}"\n'
            '[gateway]\nstreaming.enabled = false\ndelivery.first_retry = "100ms"\n'
            '[platforms.telegram]\ntoken_file = "bot.token"\n'
            f'base_url = "{fake.url}"\nallow = {{ "1" = "owner", "5" = "member", "6" = "member" }}\n'
            'busy_chats = { "3" = "collect" }\n'
        )
        self.server = RunningServer(self.data)
        self.expected: dict[str, Any] = {"project": HARBOUR, "slug": SLUG}
        self._updates = 0
        self.asked_of_chat = 100

    # Calls.

    def tool(self, name: str, /, **arguments: Any) -> Any:
        with self.server.line() as line:
            return line.tool(name, **{"project_key": HARBOUR, **arguments})

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        with self.server.line() as line:
            raw = None if body is None else json.dumps(body).encode()
            answer = line.request(method, path, body=raw, headers={"Content-Type": "application/json"})
        assert answer.status in (200, 201, 202), answer.text
        return answer.json()

    def command(self, *words: str) -> str:
        environment = {**plain_environment(self.home), "POSTROOM_DATA_DIR": str(self.data)}
        done = subprocess.run(
            [sys.executable, "-m", "postroom", *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def send(self, sender: str, *to: str, subject: str, body: str, **more: Any) -> dict[str, Any]:
        told = {"sender_name": sender, "to": list(to), "subject": subject, "body_md": body, **more}
        return dict(self.tool("send_message", **told))

    def said(self, chat: int, text: str) -> None:
        """Have somebody write in a chat of their own."""
        self._updates += 1
        who = {"id": chat, "is_bot": False, "first_name": f"P{chat}"}
        place = {"id": chat, "type": "private", "first_name": f"P{chat}"}
        message = {"message_id": self._updates, "date": 1, "text": text, "from": who, "chat": place}
        self._loop.call_soon_threadsafe(self.fake.feed, update(self._updates, message=message))

    def heard(self, chat: int) -> list[str]:
        """Return what stands in a chat."""
        return [one["text"] for one in self.fake.sent("sendMessage") if int(one["chat_id"]) == chat]

    def refuse(self, *faults: Any) -> None:
        self._loop.call_soon_threadsafe(self.fake.faults["sendMessage"].extend, faults)

    def hold(self, name: str) -> None:
        (self.desk / f"{name}.hold").touch()

    def release(self, name: str) -> None:
        (self.desk / f"{name}.hold").unlink()

    def runs(self) -> list[dict[str, Any]]:
        return list(self.admin("GET", f"/admin/runs?project={SLUG}")["runs"])

    def run_of(self, agent: str, state: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found = [one for one in self.runs() if one["agent"] == agent and one["state"] == state]
            return found[-1] if found else None

        return dict(soon(look))


def number(sent: dict[str, Any]) -> int:
    return int(sent["deliveries"][0]["payload"]["id"])


def look(database: Path, query: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


def at_rest(made: Maker) -> None:
    """What a mail room holds that nothing happens to."""
    tool, keep = made.tool, made.expected
    with made.server.line() as line:
        for folder in (HARBOUR, SHIPYARD):
            line.tool("ensure_project", human_key=folder)
    for name in CREW:
        tool("register_agent", program="sh", model="none", name=name, task_description=f"task of {name}")
    tool("register_agent", project_key=SHIPYARD, program="sh", model="none", name="Eve")
    for name in RUNNERS:
        runner = {
            "argv": ["sh", "-c", PROGRAM],
            "cwd": "/",
            "pass_env": ["FIRST_BUILD_DESK"],
            "timeout": 90000,
        }
        made.admin("PUT", "/admin/runners", {"project": HARBOUR, "agent": name, "runner": runner})
    keep["agent_token"] = {"Ben": made.command("agents", "token", "Ben", "-p", HARBOUR)}
    keep["named_token"] = {"reader": made.command("tokens", "create", "reader", "--scope", "mail:read")}
    made.command("tokens", "create", "gone", "--scope", "mail:read")
    made.command("tokens", "revoke", "gone")

    tool("set_contact_policy", agent_name="Cleo", policy="approval")
    tool("request_contact", agent_name="Ada", to="Cleo", reason="the lights")
    tool("respond_contact", agent_name="Cleo", requester="Ada", accept=True)
    tool("request_contact", project_key=SHIPYARD, agent_name="Eve", to=f"Cleo@{SLUG}", reason="ships")

    key = {
        "sender_name": "Ada",
        "to": ["Ben"],
        "cc": ["Cleo"],
        "bcc": ["Dora"],
        "subject": "The lights",
        "body_md": "Check the **north** pier.",
        "thread_id": "lights",
        "topic": "pier",
        "importance": "high",
        "ack_required": True,
        "idempotency_key": "first-build-1",
        "attachments": [
            {"name": "lamp.png", "content_base64": _base64(PICTURE)},
            {"name": "plan.txt", "content_base64": _base64(b"left, then right\n")},
        ],
    }
    sent = tool("send_message", **key)
    first = number(sent)
    keep["idempotent"] = {"tool": "send_message", "arguments": key, "answer": sent}
    tool("acknowledge_message", agent_name="Ben", message_id=first)
    reply = number(tool("reply_message", sender_name="Ben", message_id=first, body_md="They burn."))
    read = number(made.send("Ada", "Ben", subject="Read", body="read this", thread_id="papers"))
    tool("mark_message_read", agent_name="Ben", message_id=read)
    recalled = number(made.send("Ada", "Ben", subject="Mistake", body="not for you"))
    tool("recall_message", sender_name="Ada", message_id=recalled)
    unread = [
        number(made.send("Ada", "Ben", subject=f"Unread {one}", body=f"text {one}", thread_id="papers"))
        for one in range(3)
    ]
    tool(
        "send_message",
        project_key=SHIPYARD,
        sender_name="Eve",
        to=[f"Ben@{SLUG}"],
        subject="Ship",
        body_md="ahoy",
    )
    tool("retire_agent", agent_name="Dora")
    keep["letters"] = {"first": first, "reply": reply, "read": read, "recalled": recalled, "unread": unread}

    hook(made, "PostToolUse", acts_as="Ben", acts_in=HARBOUR, cwd=HARBOUR, session_id="session-1")
    hook(made, "Stop", cwd=HARBOUR, session_id="session-1")

    tool(
        "file_reservation_paths", agent_name="Ada", paths=["src/**"], ttl_seconds=31_000_000, reason="lights"
    )
    tool(
        "file_reservation_paths",
        agent_name="Ben",
        paths=["docs/*.md"],
        exclusive=False,
        ttl_seconds=31_000_000,
    )
    tool("file_reservation_paths", agent_name="Ben", paths=["Makefile"], ttl_seconds=3600)
    tool("release_file_reservations", agent_name="Ben", paths=["Makefile"])


def hook(made: Maker, event: str, **told: Any) -> None:
    made.admin("POST", f"/hooks/claude/{event}", told)


def _base64(content: bytes) -> str:
    import base64

    return base64.b64encode(content).decode()


def runs_that_ended(made: Maker) -> None:
    """Runs that are done, given up, or wait for a person; chats that were answered, and people."""
    keep = made.expected
    asked = {"done": number(made.send("Ada", "Hal", subject="Work", body="do it", thread_id="work-hal"))}
    asked["failed"] = number(made.send("Ada", "Di", subject="Work", body="fail", thread_id="work-di"))
    soon(lambda: len([one for one in inbox(made, "Ada") if one["thread_id"] in ("work-hal", "work-di")]) == 2)
    for name in ("Kim", "Cy", "Ike"):
        made.hold(name)
        asked[name] = number(
            made.send("Ada", name, subject="Work", body="ask", thread_id=f"work-{name.lower()}")
        )
        run = made.run_of(name, "at work")
        made.tool("ask_person", agent_name=name, run_id=run["run_id"], question=f"May {name}?")
        made.release(name)
        soon(lambda name=name: [one for one in questions(made) if one["agent"] == name])
        soon(
            lambda name=name: [
                one for one in inbox(made, "Ada") if one["thread_id"] == f"work-{name.lower()}"
            ]
        )
    [kim] = [one for one in questions(made) if one["agent"] == "Kim"]
    made.admin("POST", "/admin/questions", {"number": kim["number"], "answer": "yes", "why": "it is fine"})
    soon(lambda: len([one for one in inbox(made, "Ada") if one["thread_id"] == "work-kim"]) == 2)
    made.hold("Lea")
    asked["Lea"] = number(made.send("Ada", "Lea", subject="Work", body="no more", thread_id="work-lea"))
    made.admin("POST", "/admin/runs/cancel", {"run": made.run_of("Lea", "at work")["run_id"]})
    made.run_of("Lea", "cancelled")
    made.release("Lea")
    keep["asked"] = asked

    made.admin("PUT", "/admin/people", {"name": "hal", "chat": "telegram/1"})
    made.admin("PUT", "/admin/people", {"name": "bob"})
    to_person = number(made.send("Ada", "human:hal", subject="Push", body="May I push?"))
    soon(lambda: made.heard(1))
    keep["to_person"] = to_person
    made.send("Ada", "human:bob", subject="Later", body="when you are back")
    made.said(1, "good morning")
    soon(lambda: [one for one in made.heard(1) if "done by Gil" in one])
    for stranger in (8, 9):
        made.said(stranger, "let me in")
        soon(lambda stranger=stranger: made.heard(stranger))
    codes = {one: re.findall(r"\b[A-Z0-9]{8}\b", made.heard(one)[0])[0] for one in (8, 9)}
    made.admin("POST", "/admin/gateway/pair", {"platform": "telegram", "code": codes[8], "role": "member"})
    with made.server.line() as line:
        wrong = json.dumps({"platform": "telegram", "code": "AAAAAAAA", "role": "member"}).encode()
        head = {"Content-Type": "application/json"}
        assert line.request("POST", "/admin/gateway/pair", body=wrong, headers=head).status >= 400
    keep["pairing"] = {"in": "8", "asks": "9", "code": codes[9]}


def inbox(made: Maker, name: str) -> list[dict[str, Any]]:
    return list(made.tool("fetch_inbox", agent_name=name, after=0, limit=1000))


def questions(made: Maker) -> list[dict[str, Any]]:
    """Return the open questions; each one's text names the agent."""
    found = made.admin("GET", "/admin/questions")["questions"]
    return [{**one, "agent": one["question"].removeprefix("May ").removesuffix("?")} for one in found]


def in_the_middle(made: Maker) -> None:
    """Bring the server to work on everything at once, and kill it."""
    keep = made.expected
    made.send("Ben", "Ada", subject="Not archived yet", body="later", thread_id="papers")
    made.refuse(Refusal(403, "Forbidden: bot was blocked by the user"))
    made.said(5, "an answer that cannot be delivered")
    soon(lambda: made.admin("GET", "/admin/gateway/dead")["undelivered"])
    made.refuse(SILENCE)
    before = len(made.heard(6))
    made.said(6, "an answer that is being delivered")
    soon(lambda: len(made.heard(6)) > before)
    made.said(6, "an answer that waits behind it")
    soon(lambda: len(look(made.data / "postroom.db", PENDING)) > 0)

    made.hold("Bo")
    made.hold("Gil")
    work = [number(made.send("Ada", "Bo", subject="Work", body="long", thread_id="work-bo-1"))]
    made.run_of("Bo", "at work")
    work.append(number(made.send("Ada", "Bo", subject="Work", body="next", thread_id="work-bo-2")))
    made.said(1, "first of three")
    soon(lambda: look(made.data / "postroom.db", CLAIMED_CHAT))
    made.said(1, "second of three")
    soon(lambda: look(made.data / "postroom.db", HANDED_OVER)[0][0] >= 2)
    keep["at_work"] = {"Bo": work}
    keep["questions"] = [
        {"agent": one["agent"], "number": one["number"], "text": one["question"]} for one in questions(made)
    ]
    kill_with_everything_open(made)


PENDING = "SELECT 1 FROM run_outbox WHERE lane = 'chat' AND status = 'pending'"
CLAIMED_CHAT = "SELECT 1 FROM run_dispatches WHERE status = 'Claimed' AND thread_id IN (SELECT thread_id FROM chat_sessions)"
HANDED_OVER = "SELECT count(*) FROM chat_lines WHERE status = 'handed_over'"
OPEN = {
    "lines_waiting": "SELECT count(*) FROM chat_lines WHERE status = 'waiting'",
    "wakes": "SELECT count(*) FROM outbox WHERE topic = 'wake'",
    "queued": "SELECT count(*) FROM run_dispatches WHERE status = 'Queued'",
}


def kill_with_everything_open(made: Maker) -> None:
    """Let letters and lines pour in, and kill the server while some of them are only stored."""
    made.hold("Hal")
    (made.desk / "Max.busy").touch()
    made.expected["tried_again"] = number(
        made.send("Ada", "Max", subject="Work", body="busy", thread_id="work-max")
    )
    sent: list[int] = []
    over = threading.Event()

    def pour() -> None:
        rest = iter(range(1_000))
        with contextlib.suppress(Cut, OSError, AssertionError):
            while not over.is_set() and len(sent) < 300:
                one = next(rest)
                sent.append(
                    number(made.send("Ada", "Hal", subject="Pour", body=f"{one}", thread_id=f"pour-{one}"))
                )

    def chat() -> None:
        pause = threading.Event()
        for one in range(60):
            pause.wait(0.01)
            made.said(1 if one % 2 else 8, f"poured {one}")

    writer, talker = threading.Thread(target=pour), threading.Thread(target=chat)
    writer.start()
    talker.start()
    try:
        caught(made, over)
    finally:
        over.set()
        made.server.kill()
        writer.join()
        talker.join()
    made.expected["poured"] = sorted(sent)


def caught(made: Maker, over: threading.Event) -> None:
    """Stop the process at an instant at which lines and letters are stored and not handed on."""
    pid, until = made.server.pid, time.monotonic() + PATIENCE
    best: dict[str, int] = {}
    with contextlib.closing(
        sqlite3.connect(f"file:{made.data / 'postroom.db'}?mode=ro", uri=True, isolation_level=None)
    ) as database:
        while time.monotonic() < until:
            if all(_counts(database).values()):
                os.kill(pid, signal.SIGSTOP)
                found = _counts(database)
                if all(found.values()):
                    made.expected["stored_only"] = found
                    return
                os.kill(pid, signal.SIGCONT)
            found = _counts(database)
            best = {name: max(best.get(name, 0), one) for name, one in found.items()}
    raise AssertionError(f"not everything was open at one instant: {best}")


def _counts(database: sqlite3.Connection) -> dict[str, int]:
    return {name: int(database.execute(query).fetchone()[0]) for name, query in OPEN.items()}


def what_is_there(made: Maker) -> None:
    """Write down what the killed database holds, as plain numbers."""
    database = made.data / "postroom.db"
    tables = [
        name
        for [name] in look(database, "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
        if not name.startswith(("messages_fts", "sqlite_"))
    ]
    keep = made.expected
    keep["rows"] = {name: look(database, f'SELECT count(*) FROM "{name}"')[0][0] for name in tables}
    keep["killed_at"] = look(database, "SELECT max(updated_at) FROM run_dispatches")[0][0]
    for name, query in {
        "dispatches": "SELECT status, count(*) FROM run_dispatches GROUP BY 1",
        "runs": "SELECT status, count(*) FROM runs GROUP BY 1",
        "lines": "SELECT status, count(*) FROM chat_lines GROUP BY 1",
        "run_outbox": "SELECT lane || ' ' || status, count(*) FROM run_outbox GROUP BY 1",
        "outbox": "SELECT topic, count(*) FROM outbox GROUP BY 1",
    }.items():
        keep[name] = dict(look(database, query))
    keep["open_lines"] = [
        {"chat": int(chat), "text": json.loads(body)["text"], "status": status}
        for chat, body, status in look(
            database,
            "SELECT chat_id, body, status FROM chat_lines WHERE status IN ('waiting', 'handed_over') ORDER BY line_id",
        )
    ]
    keep["newest_event"] = look(
        database,
        f"SELECT max(seq) FROM project_events WHERE project_id = (SELECT id FROM projects WHERE slug = '{SLUG}')",
    )[0][0]
    keep["messages"] = {
        str(one): {"subject": subject, "body": body}
        for one, subject, body in look(database, "SELECT id, subject, body_md FROM messages ORDER BY id")
    }
    keep["unread"] = {
        f"{name}@{slug}": json.loads(ids)
        for name, slug, ids in look(
            database,
            "SELECT a.name, p.slug, json_group_array(r.message_id) FROM recipients AS r JOIN agents AS a"
            " ON a.id = r.agent_id JOIN projects AS p ON p.id = a.project_id JOIN messages AS m"
            " ON m.id = r.message_id WHERE r.read_at IS NULL AND m.recalled_at IS NULL GROUP BY a.id ORDER BY a.id",
        )
    }


@contextlib.contextmanager
def chat() -> Iterator[tuple[FakeTelegram, asyncio.AbstractEventLoop]]:
    with on_a_loop_of_its_own(lambda: FakeTelegram().serving()) as (fake, loop):
        yield fake, loop


def make_data(home: Path) -> dict[str, Any]:
    with chat() as (fake, loop):
        made = Maker(home, fake, loop)
        with made.server:
            at_rest(made)
            runs_that_ended(made)
            made.server.await_archive()
        made.server = RunningServer(made.data, "--no-archive")
        with made.server:
            in_the_middle(made)
        what_is_there(made)
    for held in made.desk.iterdir():
        held.unlink()
    with tarfile.open(HERE / "data.tar.xz", "w:xz", preset=9) as packed:
        packed.add(
            made.data, "data", filter=lambda one: None if one.name.endswith(("server.json", "-shm")) else one
        )
    return made.expected


async def postgres_runs(dsn: str) -> None:
    """Bring runs of every state into a database, say so, and wait to be killed. A process of its own."""
    from postroom.contracts.activation import Recovery, RunActivation
    from postroom.contracts.chat_people import PairingRequest, PairingRules, Person, PersonRole
    from postroom.contracts.errors import Unauthorized
    from postroom.contracts.events import AppendOptions, CanonicalEventDraft, EventScope
    from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
    from postroom.contracts.messages import Message
    from postroom.contracts.outbox import OutboxDraft
    from postroom.contracts.runs import RunWaitingState, RunWaitingTicket, TerminationReason, WaitingReason
    from postroom.contracts.tools import ToolCallResume
    from postroom.dispatch.mailbox import Mailbox
    from postroom.stores.postgres import PostgresRunStores

    began: list[str] = []

    class Agent(RunDispatchExecutor):
        async def run(self, activation: RunActivation, sink: Any) -> AgentRunResult:
            thread = activation.thread_id
            began.append(thread)
            run_id = activation.run_id or ""
            if thread.startswith("held"):
                await asyncio.Event().wait()
            if thread == "failing":
                raise Unauthorized("the key is not known")
            if thread.startswith("asking") and not activation.decisions:
                ticket = RunWaitingTicket(
                    ticket_id="q1", tool_call_id="call-1", tool_name="ask", reason="May I?"
                )
                waiting = RunWaitingState(
                    reason=WaitingReason.USER_INPUT, message="May I?", tickets=(ticket,)
                )
                return AgentRunResult(
                    run_id=run_id, waiting=waiting, termination=TerminationReason.suspended(), steps=1
                )
            said = "re: " + " | ".join(one.text() for one in activation.messages)
            return AgentRunResult(
                run_id=run_id, response=said, termination=TerminationReason.natural_end(), steps=1
            )

        def recovery(self, activation: RunActivation) -> Recovery:
            return Recovery.RESTART

        def cancel(self, id: str) -> bool:
            return False

        async def cancel_and_wait_by_thread(self, thread_id: str) -> bool:
            return False

        def send_decision(self, id: str, tool_call_id: str, resume: Any) -> bool:
            return False

        def send_messages(self, id: str, messages: Any) -> bool:
            return False

    def request(thread: str, text: str, **more: Any) -> RunActivation:
        return RunActivation.new(
            thread, [Message.user(text, id=f"{thread}/{text}")], agent_id="agent", **more
        )

    stores = await PostgresRunStores.open(dsn)
    mailbox = Mailbox(Agent(), stores, consumer_id="first-build")
    await mailbox.start_lifecycle_ready()
    for thread in ("done", "failing", "asking-open", "asking-answered"):
        await mailbox.submit_background(request(thread, "one"))
    await mailbox.settled()
    answered = await stores.threads.latest_run("asking-answered")
    assert answered is not None
    yes = ToolCallResume(decision_id="d0", result={"approved": True})
    await mailbox.submit_background(
        RunActivation.new(
            "asking-answered",
            [],
            agent_id="agent",
            continue_run_id=answered.run_id,
            decisions=[("call-1", yes)],
        )
    )
    await mailbox.submit_background(request("done", "two"))
    await mailbox.settled()
    for thread in ("held-1", "held-2"):
        await mailbox.submit_background(request(thread, "one"))
    while not {"held-1", "held-2"} <= set(began):
        await asyncio.sleep(0)
    await mailbox.submit_background(request("held-1", "two"))
    await mailbox.append_pending("pending", [Message.user("later", id="pending/later")])
    await mailbox.append_pending("held-2", [Message.user("meanwhile", id="held-2/meanwhile")])
    for number in range(3):
        draft = OutboxDraft(
            lane="own", target="t", payload={"n": number}, dedupe_key=f"k{number}", max_attempts=3
        )
        await stores.outbox.enqueue(draft)
    [claimed] = await stores.outbox.claim("own", "t", lease_ms=60_000, limit=1)
    await stores.outbox.nack(claimed.outbox_id, claimed.claim_token or "", error="no", final=True)
    await stores.outbox.claim("own", "t", lease_ms=60_000, limit=1)
    for number in range(3):
        scope = EventScope.thread("done")
        options = AppendOptions(writer_id="w", idempotency_key=f"k{number}")
        told = {"number": number}
        draft = CanonicalEventDraft(
            scopes=(scope,), event_kind=f"Kind{number}", payload=told, options=options
        )
        await stores.events.append(draft)
    await mailbox.interrupt("asking-answered")
    people, rules = stores.chat.people, PairingRules()
    await people.let_in(Person(platform="telegram", user_id="8", role=PersonRole.MEMBER, name="P8"))
    await people.ask(PairingRequest(platform="telegram", user_id="9", code_hash="hash", name="P9"), rules)
    await people.redeem("telegram", "wrong", rules)
    print("ready", flush=True)
    await asyncio.Event().wait()


@contextlib.contextmanager
def killed(*words: str) -> Iterator["subprocess.Popen[str]"]:
    child = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def make_postgres(folder: Path) -> dict[str, Any]:
    """Make a database with runs and chats in the middle and dump it."""
    from e2e import gateway_process

    with PostgresServer() as server:
        server.start()
        with killed(__file__, "postgres-runs", server.dsn) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        with chat() as (fake, loop):
            postgres_chats(server, folder, fake, loop, gateway_process.__file__)
        dumped = subprocess.run(
            [str(server._bin / "pg_dump"), "--no-owner", "--inserts", "--schema=postroom", server.dsn],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        plain = "".join(f"{line}\n" for line in dumped.splitlines() if not line.startswith(("\\", "--")))
        (HERE / "postgres.sql.xz").write_bytes(lzma.compress(plain.encode(), preset=9))
        return asyncio.run(postgres_contents(server.dsn))


def postgres_chats(
    server: PostgresServer, folder: Path, fake: FakeTelegram, loop: asyncio.AbstractEventLoop, program: str
) -> None:
    """Have three chats answered, one answer refused and one not taken; then lines that nobody answers yet."""
    numbers = iter(range(1, 1_000))

    def said(chat_id: int, text: str) -> None:
        one = next(numbers)
        who = {"id": chat_id, "is_bot": False, "first_name": f"P{chat_id}"}
        place = {"id": chat_id, "type": "private", "first_name": f"P{chat_id}"}
        message = {"message_id": one, "date": 1, "text": text, "from": who, "chat": place}
        loop.call_soon_threadsafe(fake.feed, update(one, message=message))

    def sent(chat_id: int) -> int:
        return len([one for one in fake.sent("sendMessage") if int(one["chat_id"]) == chat_id])

    journal = str(folder / "journal")
    with killed(program, server.dsn, journal, fake.url, "2"):
        for chat_id in (1, 2, 3):
            said(chat_id, f"answered {chat_id}")
            soon(lambda chat_id=chat_id: sent(chat_id))
        loop.call_soon_threadsafe(
            fake.faults["sendMessage"].append, Refusal(403, "Forbidden: bot was blocked")
        )
        said(4, "undelivered")
        soon(lambda: sent(4))
        loop.call_soon_threadsafe(fake.faults["sendMessage"].extend, [SILENCE] * 100)
        said(5, "being delivered")
        soon(lambda: sent(5))
    with killed(program, server.dsn, journal, fake.url, "2000000000"):
        for number in range(3):
            for chat_id in (1, 2):
                said(chat_id, f"open {chat_id}.{number}")
        soon(
            lambda: (
                asyncio.run(rows(server.dsn, HANDED_OVER.replace("chat_lines", "postroom.chat_lines")))[0][0]
                >= 7
            )
        )


async def rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    import asyncpg

    session = await asyncpg.connect(dsn)
    try:
        return [tuple(one) for one in await session.fetch(query)]
    finally:
        await session.close()


async def postgres_contents(dsn: str) -> dict[str, Any]:
    keep: dict[str, Any] = {"rows": {}}
    for [name] in await rows(
        dsn, "SELECT tablename::text FROM pg_tables WHERE schemaname = 'postroom' ORDER BY 1"
    ):
        [[count]] = await rows(dsn, f'SELECT count(*) FROM postroom."{name}"')
        keep["rows"][name] = count
    for name, query in {
        "dispatches": "SELECT status, count(*) FROM postroom.run_dispatches GROUP BY 1",
        "runs": "SELECT status, count(*) FROM postroom.runs GROUP BY 1",
        "lines": "SELECT status, count(*) FROM postroom.chat_lines GROUP BY 1",
        "run_outbox": "SELECT lane || ' ' || status, count(*) FROM postroom.run_outbox GROUP BY 1",
    }.items():
        keep[name] = dict(await rows(dsn, query))
    keep["killed_at"] = (await rows(dsn, "SELECT max(updated_at) FROM postroom.run_dispatches"))[0][0]
    keep["open_lines"] = [
        {"chat": int(chat_id), "text": json.loads(body)["text"], "status": status}
        for chat_id, body, status in await rows(
            dsn,
            "SELECT chat_id, body, status FROM postroom.chat_lines WHERE open_id IS NOT NULL ORDER BY line_id",
        )
    ]
    return keep


def main() -> None:
    if sys.argv[1:2] == ["postgres-runs"]:
        asyncio.run(postgres_runs(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        expected = {"sqlite": make_data(Path(folder)), "postgres": make_postgres(Path(folder))}
        (HERE / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()

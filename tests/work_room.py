"""The pages on which people work, with the middleware: a mail room whose agents are woken, and a person's browser."""

import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import httpx2
from prometheus_client import CollectorRegistry

from dispatch_room import done
from postroom.app.operations import ADMINISTRATION, ALL_OPERATIONS
from postroom.app.tokens import token_check
from postroom.contracts.agent_events import TextDelta
from postroom.contracts.errors import Overloaded, Unauthorized
from postroom.http_api.administration import administration_routes
from postroom.http_api.guard import Credentials, Guard, GuardRules
from postroom.http_api.permissions import table
from postroom.http_api.routes import application
from postroom.http_api.sessions import LoginService
from postroom.leases import Leases
from postroom.mail.context import Rules
from postroom.mail.operations import MAIL_OPERATIONS
from postroom.mail.people import StoredChatDelivery
from postroom.mail.service import Mail
from postroom.mail.waking.mail_runs import MailRunExecutor, MessageEffects
from postroom.mail.waking.prompts import AGENT_THREAD
from postroom.mail.waking.waker import Waker
from postroom.services.calls import Calls
from postroom.services.login_codes import EndedSessions, LoginCodes, Sessions
from postroom.services.people import MessageService, PeopleService
from postroom.services.push import PushNotifier
from postroom.services.questions import QuestionService
from postroom.services.runs import RunService
from postroom.services.schedules import MailSchedules
from postroom.services.work import WorkService
from postroom.stores.mail.store import MailStore
from postroom.stores.runs.ports import RunStores
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from postroom.web.pages import page_routes
from postroom.web.site import PageServices
from waking_room import PROJECT, FakeAgents, Room, number

HTTP = "http://127.0.0.1:8765"
SLUG = "projects-shop"
QUESTIONS = f"/p/{SLUG}/questions"
TOKEN = "prm_" + "t" * 43
PAGE = {"Accept": "text/html"}


async def no_facts() -> tuple[()]:
    """Return no facts about the health of a server, because there is none."""
    return ()


class Talking(FakeAgents):
    """Agents that put something out, ask a person, or fail, as the test says by their names."""

    def __init__(self, mail: Mail) -> None:
        super().__init__()
        self._mail = mail
        self.output: list[str] = []
        self.question = "May I?"
        self.more_questions: list[str] = []
        self.asks: dict[str, Any] = {}
        """Further arguments of `ask_person`."""
        self.failing = {"Fay"}
        self.overloaded = set[str]()
        self.asking = {"Ash"}
        self.told: list[str] = []
        self.question_ids: list[str] = []

    async def execute(self, activation: Any, sink: Any) -> Any:
        name = activation.agent_id.partition("@")[0]
        self.told += [message.text() for message in activation.messages]
        for text in self.output:
            await sink.emit(TextDelta(delta=text))
        if name in self.failing:
            raise Unauthorized("the key is not known")
        if name in self.overloaded:
            raise Overloaded("come back later")
        if name in self.asking and not activation.decisions:
            asked = {"project_key": PROJECT, "agent_name": name, "run_id": activation.run_id}
            for question in (self.question, *self.more_questions):
                view = await self._mail.call("ask_person", {**asked, "question": question, **self.asks})
                self.question_ids.append(view["question_id"])
            return done(activation, "I wait.")
        return await super().execute(activation, sink)


@dataclass
class WorkRoom:
    """Everything between a browser and the stores."""

    store: MailStore
    stores: RunStores
    clock: ManualClock
    rules: Rules = field(default_factory=Rules)
    wakes: bool = True
    take_back_ms: int = 0
    push_services: tuple[str, ...] = ()
    is_exclusive: bool = True
    """Whether no other server uses the store."""
    max_pending: int | None = None

    def __post_init__(self) -> None:
        self.mail = Mail(self.store, self.clock, self.rules, waker=lambda: self.waker if self.wakes else None)
        self.runs = RunService(
            self.stores,
            registry=CollectorRegistry(),
            is_exclusive=self.is_exclusive,
            timer=self.clock,
            max_pending=self.max_pending,
        )
        self.agents = Talking(self.mail)
        effects = MessageEffects(self.mail.own_context)
        self.runs.serve(AGENT_THREAD, MailRunExecutor(self.agents, self.store, self.clock), effects)
        boxes = StoredChatDelivery(self.mail)
        self.waker = Waker(self.store, self.runs.mailbox, verified=self.rules.verified, chat_delivery=boxes)
        self.questions = QuestionService(self.runs, self.clock, take_back_ms=self.take_back_ms)
        self.operator = WorkService(self.runs, self.mail, no_facts)
        self.schedules = MailSchedules(self.mail, self.stores.store, self.waker)
        people = PeopleService(self.mail, lambda _: False)
        messages = MessageService(self.mail, Calls(self.mail, MAIL_OPERATIONS), people)
        self.people_named = people
        self.sessions = Sessions(b"k" * 32, self.clock, EndedSessions(self.store))
        desk = LoginService(
            self.sessions,
            LoginCodes(self.store, self.clock),
            self.clock,
            is_operator=lambda given: given == TOKEN,
        )
        self.leases = Leases(self.stores.store, "one server", {})
        self.push = PushNotifier(
            self.runs,
            self.questions,
            self.sessions,
            self.clock,
            secret=b"p" * 32,
            services=self.push_services,
            contact="mailto:lena@example.org",
            leases=self.leases,
        )
        self.services = room = PageServices(
            visitors=self.sessions,
            questions=self.questions,
            messages=messages,
            runs=self.operator,
            schedules=self.schedules,
            push=self.push,
        )
        pages = page_routes(self.stores.store, clock=self.clock, services=room)
        behind = {
            QuestionService: self.questions,
            WorkService: self.operator,
            MailSchedules: self.schedules,
        }
        routes = [*desk.routes(), *administration_routes(ADMINISTRATION, behind), *pages]
        rules = GuardRules(max_request_bytes=8 << 20)
        credentials = Credentials(
            is_operator=token_check(TOKEN), sessions=self.sessions, is_agent=self.mail.knows_token
        )
        self.app = Guard(application(routes, permissions=table(ALL_OPERATIONS)), rules, credentials)

    def browser(self, *, logged_in: bool = True, **headers: str) -> httpx2.AsyncClient:
        """Return a person's browser."""
        cookies = {self.sessions.cookie_name: self.sessions.issue()} if logged_in else {}
        return httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=self.app),
            base_url=HTTP,
            headers={**PAGE, **headers},
            cookies=cookies,
        )

    people = Room.people

    async def send(self, sender: str, *to: str, body: str = "please", subject: str = "Work") -> int:
        """Send a message and return its number."""
        asked = {"project_key": PROJECT, "sender_name": sender, "to": list(to), "body_md": body}
        return number(await self.mail.call("send_message", {"subject": subject, **asked}))

    async def look(self, look: Any, *given: Any, **named: Any) -> Any:
        """Return what a service reads for a page."""
        return await self.stores.store.read(lambda tx: look(tx, *given, **named))

    async def turn(self) -> None:
        """Perform all due work."""
        await self.runs.mailbox.settled()
        while await self.waker.round():
            await self.runs.mailbox.settled()

    async def messages(self) -> list[Any]:
        """Return every message, oldest first."""

        def look(tx: Any) -> list[Any]:
            found = [tx.project_messages(one.id, limit=500) for one in tx.projects(limit=500)]
            return sorted((one for messages in found for one in messages), key=lambda one: one.id)

        return await self.store.read(look)

    async def close(self) -> None:
        await self.runs.mailbox.aclose(timedelta(0))


@asynccontextmanager
async def opened(
    clock: ManualClock, *people: str, runners: tuple[str, ...] = (), **more: Any
) -> AsyncIterator[WorkRoom]:
    """Open a room over a store in memory, with these people."""
    store = SqliteStore.in_memory(clock)
    room = WorkRoom(store, store.runs, clock, **more)
    await room.people(*people, runners=runners)
    yield room
    await room.close()
    store.close()


def hidden(page: str, name: str) -> str:
    """Return what a hidden field of a page's first form holds that has it."""
    found = re.search(rf'<input type="hidden" name="{name}" value="([^"]*)"', page)
    assert found is not None, f"no field {name} in {page[:2000]}"
    return html.unescape(found[1])


async def take_back_form(browser: httpx2.AsyncClient, run_id: str) -> list[tuple[str, str]]:
    """Return the fields of the first form that takes back an answer to a run, from the page of questions."""
    forms = (await browser.get(QUESTIONS)).text.split("<form ")
    form = next(one for one in forms if 'value="take_back"' in one and run_id in one)
    names = ("form_token", "run", "number", "answer_id")
    return [*((name, hidden(form, name)) for name in names), ("do", "take_back")]


def place(answer: Any) -> str:
    """Return the address to which an answer leads, without the seal of what it says."""
    return re.sub(r"[?&]seal=[^&#]*", "", answer.headers["location"])


async def post(browser: httpx2.AsyncClient, address: str, *pairs: tuple[str, str], **headers: str) -> Any:
    """Send a form as a browser does from a page of postroom."""
    given = {"Content-Type": "application/x-www-form-urlencoded", "Origin": HTTP, **headers}
    return await browser.post(address, content=urlencode(pairs), headers=given)

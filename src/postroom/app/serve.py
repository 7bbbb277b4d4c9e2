"""Runs the server process, which serves MCP, pages, health and administration on one port."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Final

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from postroom.app import places
from postroom.app.admin_service import AdminService
from postroom.app.agents_config import load_agents
from postroom.app.budgets_config import load_budgets
from postroom.app.chats import ChatAdministration, Chats
from postroom.app.config import Settings
from postroom.app.connection import ACCEPTED_AT_ONCE, QUEUE, Connection
from postroom.app.gateway_config import load_gateway
from postroom.app.health import ServerHealth
from postroom.app.interpreter import set_for_a_server
from postroom.app.logs import configure_logs
from postroom.app.operations import ADMINISTRATION, ALL_OPERATIONS
from postroom.app.privacy import keep_private
from postroom.app.retention import load_keep_rules
from postroom.app.tokens import derived_key, load_or_make_token, token_check
from postroom.app.undelivered import UndeliveredService
from postroom.app.wiring import Application, Declared, see_database
from postroom.concurrency import SystemTimer, Tasks
from postroom.contracts import progress
from postroom.contracts.clock import SystemClock
from postroom.contracts.errors import ConfigError, PostroomError
from postroom.contracts.push import PUSH
from postroom.executors.remote import CALLBACKS, LARGEST_BODY
from postroom.http_api.guard import Credentials, Guard, GuardRules, OpenPath
from postroom.http_api.other_servers import Believing
from postroom.http_api.permissions import table
from postroom.http_api.readiness import FreshReadiness, LagMeter, measure_lag
from postroom.http_api.rest.routes import rest_paths
from postroom.http_api.routes import application as asgi_application
from postroom.http_api.routes import callback_routes, hook_routes, routes
from postroom.http_api.sessions import LoginService
from postroom.log import get_logger
from postroom.mail.tokens import NamedTokens
from postroom.mcp_server.loading import LoadedOnUse
from postroom.mcp_server.profiles import Addresses
from postroom.services.following import EventFollowing, Following
from postroom.services.hooks import Hooks
from postroom.services.login_codes import EndedSessions, LoginCodes, Sessions
from postroom.services.people import MessageService, PeopleService
from postroom.services.push import PushNotifier
from postroom.services.questions import QuestionService
from postroom.services.runners import RunnerService
from postroom.services.schedules import MailSchedules
from postroom.services.work import WorkService
from postroom.stores.sqlite.lock import OwnerLock
from postroom.version import __version__
from postroom.web.pages import page_routes
from postroom.web.site import PageServices

if TYPE_CHECKING:
    from postroom.mcp_server.endpoint import McpOverHttp

_LOG = get_logger(__name__)

ALIASES: Final = ("/api",)
"""Other addresses of the MCP endpoint, for older configurations of clients."""
GRACE_SECONDS: Final = 5
"""The number of seconds for open requests to finish when the server stops."""
_STOPPING: Final = (
    "Shutting down. Active runs go back to the queue and resume at the next start; their programs "
    f"get 5 s to exit, and open requests {GRACE_SECONDS} s. "
)
_CHATS_STOPPING: Final = (
    "Shutting down. Chats get {:g} s to finish their answers. Other active runs go back to the queue and "
    f"resume at the next start; their programs get 5 s to exit, and open requests {GRACE_SECONDS} s. "
)
_DELAYED: Final = (
    "Shutting down. For {:g} s the server still answers calls, so that load balancers notice that it is not "
    "ready. Then it stops its runs and chats. "
)
_AGAIN: Final = "Press Ctrl-C again to skip this wait."
_HURRYING: Final = "Skipping the wait for chats and open requests. Programs of runs get about 5 s to exit."
NOTE_AGAIN_MS: Final = 1_000
"""The interval between attempts to write the server's note for clients."""
CHANNELS_SECONDS: Final = 10
"""The number of seconds that the greeting waits for chat channels. A slower channel is connected later."""


class Site:
    """The web application of a server, with all services.

    The context manager of a site starts and stops the background work.
    """

    def __init__(self, application: Application, token: str, *, short_way: bool = True) -> None:
        settings, clock = application.settings, application.clock
        self._application = application
        self._short_way = short_way
        self._meter = LagMeter()
        chats = None
        if application.gateway is not None:
            from postroom.app.gateway_service import GatewayService  # loaded only if there are chats

            chats = GatewayService(application.gateway)
        self._started_at = clock.now()
        self._operator = AdminService(application, self._meter, started_at=self._started_at, chats=chats)
        is_operator = token_check(token)
        sessions = Sessions(derived_key(token, "page-session"), clock, EndedSessions(application.store))
        self.codes = LoginCodes(application.store, clock)
        self._visitors = sessions
        questions = QuestionService(application.runs, clock)
        self._push = PushNotifier(
            application.runs,
            questions,
            sessions,
            clock,
            secret=derived_key(token, "web-push"),
            services=settings.push_services,
            contact=settings.push_contact,
            leases=application.leases,
        )
        application.relay.handlers[PUSH] = self._push
        self._people = PeopleService(application.mail, application.reaches, application.answers_chats)
        login = LoginService(sessions, self.codes, clock, is_operator=is_operator)
        self._mcp = LoadedOnUse(self._make_mcp)
        chat_routes = [] if application.gateway is None else application.gateway.routes()
        app = asgi_application(
            self._routes(login, questions, chat_routes),
            lifespan=self._lifespan,
            permissions=table(ALL_OPERATIONS, settings.mcp_path, chat_routes),
        )
        credentials = Credentials(
            is_operator=is_operator,
            sessions=sessions,
            is_agent=application.mail.knows_token,
            grant_of=application.tokens.recognise,
            others=application.others,
        )
        channels = () if application.gateway is None else application.gateway.open_paths
        self.has_chat_page = any(channel.path == "/chat" for channel in channels)
        rules = GuardRules(
            host=settings.host,
            allowed_hosts=settings.allowed_hosts,
            mcp_path=settings.mcp_path,
            max_request_bytes=settings.max_request_bytes,
            channels=(*channels, OpenPath(path=CALLBACKS, limit=LARGEST_BODY)),
            rest_paths=rest_paths(),
        )
        self.app: ASGIApp = Addresses(Guard(app, rules, credentials), settings.mcp_path, others=ALIASES)
        if application.others is not None:
            application.others.know(derived_key(token, "passed-on").hex())
            self.app = Believing(self.app, application.others)

    def _routes(
        self, login: LoginService, questions: QuestionService, chat_routes: list[BaseRoute]
    ) -> list[BaseRoute]:
        application, settings = self._application, self._application.settings
        runs = WorkService(
            application.runs,
            application.mail,
            ServerHealth(
                application,
                FreshReadiness(self._operator.ready, application.clock),
                started_at=self._started_at,
            ),
        )
        # The services that pages for logged-in people need.
        messages = MessageService(self._application.mail, self._application.calls, self._people)
        page_services = PageServices(
            visitors=self._visitors,
            questions=questions,
            messages=messages,
            runs=runs,
            schedules=self._application.schedules,
            push=self._push,
        )
        return [
            Route(settings.mcp_path, self._mcp),
            *routes(
                login,
                ready=self._operator.ready,
                registry=application.metrics.registry,
                clock=application.clock,
                mcp_path=settings.mcp_path,
                refresh=self._operator.refresh_metrics,
                operations=ADMINISTRATION,
                services={
                    AdminService: self._operator,
                    ChatAdministration: ChatAdministration(self._operator.chats),
                    UndeliveredService: self._operator.chats or UndeliveredService(application.store.runs),
                    RunnerService: RunnerService(application.mail, application.executors.check),
                    QuestionService: questions,
                    WorkService: runs,
                    MailSchedules: application.schedules,
                    NamedTokens: application.tokens,
                    PeopleService: self._people,
                },
                calls=application.calls,
                events=EventFollowing(application.mail, application.tokens.holds),
            ),
            *hook_routes(Hooks(application.mail), Following(application.mail)),
            *callback_routes(CALLBACKS, application.executors.results, application.others),
            *chat_routes,
            *page_routes(
                application.store.runs.store,
                clock=application.clock,
                services=page_services,
            ),
        ]

    def _make_mcp(self) -> "McpOverHttp":
        from postroom.mcp_server.endpoint import McpOverHttp  # loaded when the first message arrives

        application = self._application
        made = McpOverHttp(
            application.mcp_server(),
            max_request_bytes=application.settings.max_request_bytes,
            is_traced=application.mail.tracing.is_on,
            short=self._short_way,
        )
        gc.freeze()  # as at the start, because the modules that were loaded now stay
        return made

    def announce_stop(self) -> None:
        """Report from now on that the server is not ready."""
        self._operator.is_stopping = True

    def end_listening(self) -> None:
        """End the event streams of all subscribers."""
        self._mcp.end_listening()
        self._application.mail.changes.stop()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with self._application.at_work(), asyncio.TaskGroup() as group:
            group.create_task(self._mcp.run(), name="mcp")
            self._meter.note(0, self._application.clock.now())
            group.create_task(measure_lag(self._meter, self._application.clock), name="loop lag")
            pushing = group.create_task(self._push.serve(), name="push")
            try:
                yield
            finally:
                pushing.cancel()
                self._mcp.end()
                self._meter.stop()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, application: Application, site: Site) -> None:
        super().__init__(config)
        self._application = application
        self._site = site
        self._chats = None if application.gateway is None else Chats(application.gateway, end=self._end)
        self._failure: PostroomError | None = None
        self._tasks = Tasks("server")

    @property
    def failure(self) -> PostroomError | None:
        return self._failure or (None if self._chats is None else self._chats.failure)

    def _end(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        try:
            await self._application.agents.start()
        except PostroomError as error:  # only a person can correct it, so the server ends
            self._failure = error
            self.should_exit = True
            return
        if self._chats is not None:
            await self._chats.start(patience=CHANNELS_SECONDS, told_to_stop=lambda: self.should_exit)
        if self.should_exit:
            return
        self._application.backups.start()
        self._application.retention.start()
        self._application.tokens.start()
        for listener in sockets or ():
            listener.listen(QUEUE)  # asyncio also uses its number for how many connections it accepts at once
        if not await asyncio.to_thread(_leave_note, self._application):
            self._tasks.start(_leave_note_later(self._application), name="note")
        set_for_a_server()
        code = await self._site.codes.make() if sys.stdout.isatty() else ""
        with suppress(OSError):  # a disk that is too full for the log is too full for the greeting
            # Print the addresses; on a terminal, also print a one-time login link.
            application = self._application
            settings, url = application.settings, application.address
            endpoint = f"{url}{settings.mcp_path}"
            token_file = places.token_file(settings.data_dir)
            page = f"{url}/login?code={code}" if code else f"{url}/  (`postroom open` logs in)"
            chat = f"  chat      {url}/chat\n" if self._site.has_chat_page else ""
            print(
                f"postroom {__version__}\n  page      {page}\n{chat}  MCP       {endpoint}\n"
                f"  token     {token_file}\n"
                f"  connect   claude mcp add --transport http postroom {endpoint}/core "
                f'--header "Authorization: Bearer $(cat {token_file})"\nPress Ctrl-C to stop the server.',
                flush=True,
            )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._site.announce_stop()
        until = time.monotonic() + self._application.settings.stop_delay.total_seconds()
        # A second signal, which arrives outside the event loop, ends the grace period.
        while time.monotonic() < until and self.config.timeout_graceful_shutdown and not self.failure:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await self._tasks.close()
        await self._application.backups.stop()
        await self._application.retention.stop()
        if self._chats is not None:
            await self._chats.stop()
        await self._application.agents.stop()
        self._site.end_listening()
        if self._application.others is not None:
            await self._application.others.end()
        await super().shutdown(sockets)
        await self._application.tokens.stop()

    def _stopping(self) -> str:
        if delay := self._application.settings.stop_delay.total_seconds():
            return _DELAYED.format(delay) + _AGAIN
        if (chats := self._application.gateway) is None:
            return _STOPPING + _AGAIN
        return _CHATS_STOPPING.format(chats.gateway.config.drain.total_seconds()) + _AGAIN

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        with suppress(OSError, RuntimeError):  # RuntimeError: the signal interrupted a print
            print(_HURRYING if self.should_exit else self._stopping(), file=sys.stderr, flush=True)
        if self.should_exit:  # uvicorn alone would leave other parts running
            self.config.timeout_graceful_shutdown = 0
            if self._chats is not None:
                self._chats.hurry()
            return
        super().handle_exit(sig, frame)


def run(settings: Settings, *, new_store: bool = False) -> int:
    """Run the server until it is stopped, and return the exit code.

    The value of `new_store` is passed to `Application.open`.

    Raises:
        ConfigError: The port is in use, the token or a folder is not private, or a chat's configuration is
            invalid.
        MissingExtra: A library for PostgreSQL, a chat or telemetry is not installed.
        StoreHeld: Another server uses the database or the data folder.
        SchemaTooNew, StoreReadOnly, StoreUnavailable: This process cannot use the database.
        WrongStore: The database does not belong to this data folder.
    """
    configure_logs(settings)
    logging.captureWarnings(True)  # so that warnings of libraries look like other log lines
    keep_private(settings)
    gateway = load_gateway(settings)
    environment = places.environment()
    declared = Declared(
        agents=load_agents(environment),
        budgets=load_budgets(environment),
        keep=load_keep_rules(environment),
        chats=gateway,
    )
    token_file = places.token_file(settings.data_dir)
    if settings.database_url and not token_file.exists():  # this creates nothing if it fails
        see_database(settings, new_store=new_store)
    token = load_or_make_token(token_file)
    with ExitStack() as stack:
        if settings.database_url:  # the lock of a SQLite database is enough
            lock = OwnerLock(settings.data_dir / "server", of=settings.data_dir)
            lock.acquire(now=SystemClock().now(), purpose="server")
            stack.callback(lock.release)
        listener = _listen(settings)
        try:
            with progress.watched(progress.Lines(_going_on, time.monotonic)):
                host, port = listener.getsockname()[:2]
                address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
                application = Application.open(
                    settings, declared=declared, address=address, new_store=new_store
                )
        except BaseException:
            listener.close()
            raise
        try:
            site = Site(application, token)
            server = _Server(
                uvicorn.Config(
                    site.app,
                    http=Connection,
                    loop="asyncio",  # otherwise uvicorn uses uvloop if it is installed
                    backlog=ACCEPTED_AT_ONCE,
                    log_config=None,
                    access_log=False,
                    lifespan="on",
                    ws="none",
                    server_header=False,
                    date_header=False,
                    timeout_graceful_shutdown=GRACE_SECONDS,
                    timeout_keep_alive=30,
                ),
                application,
                site,
            )
            # Uvicorn stops gracefully, and then raises the signal again for other handlers.
            signal.signal(signal.SIGTERM, _raise_interrupt)
            server.run(sockets=[listener])
            if server.failure is not None:
                raise server.failure
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        except _StoppedBySignal:
            return 0
        finally:
            places.remove_server_note(settings.data_dir, pid=os.getpid())
            application.close()
            listener.close()
        return 0


def _going_on(text: str) -> None:
    _LOG.info("start.going_on", doing=text)


class _StoppedBySignal(Exception):
    """Raised after a signal has stopped the server."""


def _raise_interrupt(_number: int, _frame: object) -> None:
    raise _StoppedBySignal


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With the protocol given, asyncio disables Nagle's algorithm, which would delay every response by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}",
            value=settings.port,
            remedy=(
                "check with `postroom status` whether another server uses this port, or choose another "
                "port with --port"
            ),
        ) from error
    listener.set_inheritable(True)
    return listener


async def _leave_note_later(application: Application) -> None:
    timer = SystemTimer()
    is_left = False
    while not is_left:
        await timer.sleep(NOTE_AGAIN_MS)
        is_left = await asyncio.to_thread(_leave_note, application, is_again=True)
    _LOG.info("serve.note_written", file=str(places.server_note(application.settings.data_dir)))


def _leave_note(application: Application, *, is_again: bool = False) -> bool:
    settings = application.settings
    note = places.ServerNote(
        url=application.address,
        pid=os.getpid(),
        version=__version__,
        started_at=application.clock.now(),
        mcp_path=settings.mcp_path,
    )
    try:
        places.write_server_note(settings.data_dir, note)
    except OSError as error:
        if not is_again:
            _LOG.warning(
                "serve.note_not_written",
                file=str(places.server_note(settings.data_dir)),
                reason=error.strerror,
                remedy="free space on the disk; until then set POSTROOM_URL for the clients on this machine",
            )
        return False
    return True

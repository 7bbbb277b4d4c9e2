"""The only module that creates the objects of the application, and connects them."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Final, NamedTuple

from postroom.app.agent_supervisor import AgentSupervisor, ExecutorRegistry, mail_runs
from postroom.app.agents_config import DeclaredAgent
from postroom.app.backups import Backups
from postroom.app.config import Settings
from postroom.app.metrics import Metrics
from postroom.app.places import agent_token_dir, environment, machine_dir, programs_dir, write_private
from postroom.app.retention import RETENTION, Retention
from postroom.app.store_identity import Kept, give_up_damaged_log, settle_identity
from postroom.app.telemetry import open_tracing
from postroom.app.tokens import new_agent_token
from postroom.contracts.chat import CHAT_THREAD
from postroom.contracts.clock import Clock, SystemClock
from postroom.contracts.limits import Budget
from postroom.contracts.mail import KeepRule
from postroom.contracts.outbox import Backlog
from postroom.contracts.people import ChatAddress
from postroom.contracts.tracing import OFF, Tracing
from postroom.executors.processes.process_runner import is_gone, own_process
from postroom.http_api.other_servers import OtherServers, get_tag
from postroom.leases import Leases
from postroom.log import get_logger
from postroom.mail.archive.archive import Archive, Author
from postroom.mail.context import Rules
from postroom.mail.operations import MAIL_OPERATIONS
from postroom.mail.outgoing import ARCHIVE
from postroom.mail.people import StoredChatDelivery, is_named
from postroom.mail.service import Mail
from postroom.mail.tokens import NamedTokens
from postroom.mail.waking.waker import Waker
from postroom.relay import Handler, Relay
from postroom.services.calls import Calls, Subscriptions
from postroom.services.runs import RunService
from postroom.services.schedules import MailSchedules
from postroom.stores.changes import SharedChanges
from postroom.stores.migrations import newest_of, shipped_migrations
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.sqlite import SqliteStore
from postroom.stores.stores import Stores
from postroom.version import __version__

if TYPE_CHECKING:
    from postroom.app.gateway_config import GatewayFile
    from postroom.app.gateway_wiring import ChatService
    from postroom.mcp_server.server import PostroomMcpServer

LOG_RESERVE = 8 << 20
"""The number of bytes reserved for the database's log: about as many as are written between checkpoints."""


class Declared(NamedTuple):
    """The declarations in the configuration files: agents, budgets, retention rules and chats."""

    agents: Sequence[DeclaredAgent] = ()
    budgets: Sequence[Budget] = ()
    keep: Sequence[KeepRule] = ()
    chats: "GatewayFile | None" = None


NOTHING: Final = Declared()
_LOG = get_logger(__name__)


class Application:
    """A running installation: the database, the services, and the background work."""

    def __init__(
        self,
        settings: Settings,
        store: Stores,
        clock: Clock,
        declared: Declared = NOTHING,
        tracing: Tracing = OFF,
        *,
        address: str = "",
    ) -> None:
        """Create all parts of the installation without starting them.

        `address` is the address on which the server listens.
        """
        self.settings, self.store, self.clock, self.address = settings, store, clock, address
        self.metrics = Metrics(store, clock)
        self.mail = Mail(
            store,
            clock,
            read_rules(settings),
            keep_token=self._keep_token,
            tracing=tracing,
            waker=lambda: self.waker if self.agents.is_waking else None,
        )
        shared = None if store.is_exclusive else SharedChanges(store.store.changes, store.store.engine.share)
        self.tokens = NamedTokens(store, clock, shared=shared)
        self.news = Subscriptions(holds=self.tokens.holds, shared=shared)
        self.calls = Calls(self.mail, MAIL_OPERATIONS, news=self.news, observe=self.metrics.observe_call)
        self.leases = self._leases()
        self.others = None if store.is_exclusive else OtherServers(self.leases, clock)
        """The other servers that share the database, or None if no other server can use it."""
        self.archive = self._archive()
        handlers: dict[str, Handler] = {ARCHIVE: self.archive} if self.settings.archive_enabled else {}
        self.relay = Relay(self.store.store, handlers, is_exclusive=self.store.is_exclusive)
        self.runs = RunService(
            store.runs,
            registry=self.metrics.registry,
            is_exclusive=store.is_exclusive,
            budgets=declared.budgets,
            max_pending=self.settings.max_pending_messages,
            leases=None if store.is_exclusive else self.leases,
            claims_hold=None
            if store.is_exclusive
            else lambda duration: self.executors.programs.hold(duration),
        )
        self.executors = ExecutorRegistry(
            self.settings,
            self.mail,
            self.calls,
            self.runs.stores.dispatches,
            self.clock,
            address=self.address,
            in_chats=in_chats(declared.chats),
            tokens=self.tokens.runs,
            server=get_tag(self.leases.holder),
            alone_at=self._places() if self.store.is_exclusive else (),
        )
        delivery = StoredChatDelivery(self.mail)
        self.gateway = None if declared.chats is None else self._gateway(declared.chats, delivery)
        """The gateway to chats, if chats are configured. The server process runs the gateway."""
        self.waker = Waker(
            self.store,
            self.runs.mailbox,
            verified=self.settings.verified,
            chat_delivery=delivery,
            chats=None if self.gateway is None else self.gateway.mail_outbox,
        )
        self.schedules = MailSchedules(self.mail, store.store, self.waker)
        self.agents = AgentSupervisor(
            self.mail, self.runs, self.executors, clock, self.waker, self.schedules, declared.agents
        )
        self.backups = Backups(settings, store, clock)
        self.retention = self._retention(declared.keep)
        self._turn = asyncio.Lock()

    @classmethod
    def open(
        cls,
        settings: Settings,
        *,
        clock: Clock | None = None,
        purpose: str = "server",
        declared: Declared = NOTHING,
        address: str = "",
        new_store: bool = False,
    ) -> "Application":
        """Lock the database, and create all parts without starting them.

        Blocks. `declared` contains the contents of the configuration files. The default of `clock` is the
        database's clock. `address` is the address on which the server listens. If `new_store` is True, the
        database replaces the expected database, and the archive is moved to another folder.

        Raises:
            WrongStore: The database is missing, empty, older than the archive or has another id, or its log
                is damaged.
            StoreHeld, SchemaTooNew, StoreReadOnly: This process cannot use the database.
            ConfigError, StoreUnavailable: The database server rejects the connection, or does not answer.
            ConfigError: A channel cannot be created from its configuration.
            MissingExtra: A configured part needs libraries that are not installed.
        """
        tracing = open_tracing(settings)
        try:
            identity = Kept.of(settings)
            if new_store:
                give_up_damaged_log(settings, clock or SystemClock())
            with identity.telling_where():
                store = _open_store(
                    settings, clock, purpose, may_begin=new_store or not identity.expects_a_store
                )
            try:
                if aside := settle_identity(store, settings, identity, new_store=new_store):
                    _LOG.warning("store.archive_set_aside", folder=str(aside))
                return cls(settings, store, store.clock, declared, tracing, address=address)
            except BaseException:
                store.close()
                raise
        except BaseException:
            tracing.close()
            raise

    def reaches(self, place: ChatAddress) -> bool:
        """Return whether a channel of this server can send messages to a chat."""
        return self.gateway is not None and self.gateway.mail_outbox.reaches(place)

    def answers_chats(self, whom: str) -> bool:
        """Return whether the gateway file names a person or agent to answer in chats."""
        return self.gateway is not None and self.gateway.names(whom)

    def _places(self) -> list[str]:
        return [socket.gethostname(), *self.settings.labels]

    def _leases(self) -> Leases:
        host, this = socket.gethostname(), own_process(programs_dir(self.settings.data_dir))
        leases = Leases(
            self.store.store,
            f"{host}/{this['pid']}/{token_hex(4)}",
            {
                **this,
                "host": host,
                "address": self.address,
                "version": __version__,
                "schema": newest_of(shipped_migrations("postgres")),
                "places": self._places(),
            },
            is_gone=(lambda _: True) if self.store.is_exclusive else is_gone,
        )
        leases.want(RETENTION)
        if self.settings.archive_enabled:
            leases.want(ARCHIVE, taken=lambda: self.relay.take_over(ARCHIVE))
        return leases

    def _archive(self) -> Archive:
        settings = self.settings
        author = Author(name=settings.git_author_name, email=settings.git_author_email)
        return Archive(
            settings.storage_root,
            self.store,
            self.clock,
            author,
            batch=settings.archive_batch,
            may_write=partial(self.leases.holds, ARCHIVE),
        )

    def _retention(self, keep: Sequence[KeepRule]) -> Retention:
        store = self.store
        return Retention(
            self.settings, store, keep, runs=store.store, files=store.chat.files, leases=self.leases
        )

    def _gateway(self, told: "GatewayFile", delivery: StoredChatDelivery) -> "ChatService":
        from postroom.app.gateway_wiring import ChatService  # imported only if there are chats

        whose = in_chats(told)
        has_agents = any(config.run is not None for config in (told.agent, *told.others.values()))
        made = ChatService(
            told,
            runs=self.runs,
            chat=self.store.chat,
            relay=self.relay,
            clock=self.clock,
            registry=self.metrics.registry,
            agents=mail_runs(self.mail, self.executors, self.clock, whose) if has_agents else None,
            runners=self.executors,
            knows_person=lambda name: self.store.read(lambda tx: is_named(tx, name)),
            mail=delivery,
            locks_dir=machine_dir(environment()),
            leases=None if self.store.is_exclusive else self.leases,
            store_id=None if self.store.is_exclusive else self._store_id,
            others=self.others,
        )
        made.prepare(self.settings.mcp_path)
        return made

    async def _store_id(self) -> str:
        return (await self.store.identity()).store_id or ""

    async def backlogs(self) -> dict[str, Backlog]:
        """Return the number of waiting effects and dead letters for each kind of effect."""
        kinds = {ARCHIVE, *self.relay.handlers}
        return await self.store.store.read(lambda tx: {kind: tx.outbox.backlog(kind) for kind in kinds})

    def mcp_server(self) -> "PostroomMcpServer":
        """Create an MCP server for this application; the function may be called more than once."""
        from postroom.mcp_server.server import PostroomMcpServer  # loads the SDK
        from postroom.mcp_server.windows import Windows
        from postroom.services.questions import QuestionService

        @asynccontextmanager
        async def lifespan(_: object) -> AsyncIterator[dict[str, object]]:
            async with self.at_work():
                yield {}

        return PostroomMcpServer(
            self.mail,
            profile=self.settings.profile,
            mcp_path=self.settings.mcp_path,
            subscriptions=self.news,
            observe=self.metrics.observe_call,
            untold=self.executors.untold,
            windows=Windows(QuestionService(self.runs, self.clock)),
            lifespan=lifespan,
        )

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Deliver the effects in the outbox while at least one caller is in this context manager."""
        leaving, has_turn = asyncio.Event(), asyncio.Event()

        async def in_turn() -> None:
            async with self._turn:
                has_turn.set()
                async with self.leases.serving():
                    await self.relay.serve(leaving)

        async with asyncio.TaskGroup() as group:
            turn = group.create_task(in_turn(), name="relay")
            try:
                yield
            finally:
                leaving.set()
                self.relay.hint()
                if not has_turn.is_set():
                    turn.cancel()

    def _keep_token(self, slug: str, name: str) -> tuple[str, str]:
        token = new_agent_token()
        path = agent_token_dir(self.settings.data_dir) / slug / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, token + "\n")
        return token, str(path)

    def close(self) -> None:
        """Finish submitted work, and close the database; a second call does nothing."""
        self.store.close()
        self.mail.tracing.close()


def in_chats(chats: "GatewayFile | None") -> Callable[[str], tuple[str, str] | None]:
    """Return a function that maps a chat thread to the project and name of a registered agent, or to None."""

    def whose(thread_id: str) -> tuple[str, str] | None:
        is_chat = chats is not None and thread_id.startswith(CHAT_THREAD)
        agent = chats.agent_on(thread_id) if chats is not None and is_chat else None
        return None if agent is None else agent.run

    return whose


def see_database(settings: Settings, *, new_store: bool) -> None:
    """Check that a server can use the database, by opening and closing the database.

    Blocks.

    Raises:
        PostroomError: The database cannot be used. The errors are those of `Application.open`.
    """
    identity = Kept.of(settings)
    may_begin = new_store or not identity.expects_a_store
    with identity.telling_where():
        _open_store(settings, None, "server", may_begin=may_begin, is_tried=True).close()


def _open_store(
    settings: Settings, clock: Clock | None, purpose: str, *, may_begin: bool, is_tried: bool = False
) -> Stores:
    if settings.database_url:
        return PostgresStore.open(
            settings.database_url,
            direct_dsn=settings.database_direct_url,
            schema=settings.database_schema,
            clock=clock,
            may_begin=may_begin,
            is_tried=is_tried,
            is_gone=is_gone,
        )
    return SqliteStore.open(
        settings.database, clock=clock, purpose=purpose, log_reserve=LOG_RESERVE, may_begin=may_begin
    )


def read_rules(settings: Settings) -> Rules:
    """Return the mail rules that the settings contain."""
    return Rules(
        verified=settings.verified,
        owner=settings.owner,
        projects_by=settings.projects_by,
        max_subject_chars=settings.max_subject_chars,
        max_body_bytes=settings.max_body_bytes,
        max_attachment_bytes=settings.max_attachment_bytes,
        max_attachments_bytes=settings.max_attachments_bytes,
        max_attachments=settings.max_attachments,
        inline_image_max_bytes=settings.inline_image_max_bytes,
        max_recipients=settings.max_recipients,
        max_reservation_ttl=settings.max_reservation_ttl,
        default_reservation_ttl=settings.default_reservation_ttl,
        case_sensitive_paths=settings.case_sensitive_paths,
        note_tokens=settings.note_tokens,
        note_ttl=settings.note_ttl,
        guard_mode=settings.guard_mode,
        stale_write_mode=settings.stale_write_mode,
        stale_edit_mode=settings.stale_edit_mode,
    )

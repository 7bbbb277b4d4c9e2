"""Executes operations: prepares their transactions, and stores results under idempotency keys.

The change of a command first locks the projects of the command. The change reads nothing before that.
"""

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from postroom.contracts.clock import Clock
from postroom.contracts.errors import (
    IdempotencyConflict,
    InvalidPath,
    NotPermitted,
    StoreError,
    TokenRequired,
)
from postroom.contracts.operations import Operation
from postroom.contracts.people import ChatAddress
from postroom.contracts.runners import MAX_RUNS_AT_ONCE
from postroom.contracts.tracing import OFF, Tracing, message_trace
from postroom.contracts.waking import Accept, RunnerChange, RunnerSource, number_of
from postroom.log import get_logger
from postroom.mail.agents import RotatedToken
from postroom.mail.attachments import load_attachments
from postroom.mail.commands import (
    AskPerson,
    Change,
    Command,
    CreateAgentIdentity,
    EnsureProject,
    RecallMessage,
    RegisterAgent,
    ReplyMessage,
    ReservePaths,
    RotateAgentToken,
    SendMessage,
    StartSession,
    read_command,
)
from postroom.mail.context import (
    Caller,
    LoadedAttachment,
    OperationContext,
    Rules,
    WriteContext,
    token_hash,
)
from postroom.mail.git_identity import Recognition
from postroom.mail.identity import acting, find_agent, refuse_making, refuse_unknown_token
from postroom.mail.operations import OPERATIONS, READ, RESERVE
from postroom.mail.projects import (
    PEOPLE_KEY,
    PERSONS,
    OneProject,
    checked_path,
    find_project,
)
from postroom.mail.repositories import Repositories
from postroom.mail.sending import named_readers
from postroom.mail.unmatched import unmatched
from postroom.mail.waking.asking import ask_person_again
from postroom.mail.waking.prompts import agent_thread
from postroom.stores.changes import MAIL, ChangeNotifier
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.mail.store import MailStore
from postroom.stores.store import Transaction

if TYPE_CHECKING:
    from postroom.mail.waking.waker import OpenChange, Waker


T = TypeVar("T")

TOGETHER: Final = 0.05
"""The seconds to wait after a hint, so that many changes in quick succession cause only one read."""
LOOK_AGAIN: Final = timedelta(seconds=5)
"""Maximum time until a change is noticed if its hint was lost."""
_LOG = get_logger(__name__)


class MailChanges:
    """Lets callers wait for changes in mail."""

    def __init__(self, changes: ChangeNotifier) -> None:
        self._changes = changes
        self.is_stopped = False

    def ring(self) -> None:
        """Make every waiting caller check for changes now."""
        self._changes.tell((MAIL,))

    def stop(self) -> None:
        """End all current and future waits.

        A repeated call does nothing.
        """
        self.is_stopped = True
        self.ring()

    async def awaited(
        self, look: Callable[[], Awaitable[T]], is_news: Callable[[T], bool], *, until: float
    ) -> T:
        """Call `look` now and after each change, until `is_news` accepts the result or the deadline passes.

        Return the last result. `until` is a time of the event loop's clock.
        """
        loop = asyncio.get_running_loop()
        with self._changes.listen(MAIL) as changed:
            while True:
                result = await look()
                if is_news(result) or self.is_stopped or loop.time() >= until:
                    return result
                await changed.wait(min(LOOK_AGAIN, timedelta(seconds=until - loop.time())))
                if not self.is_stopped:
                    await asyncio.sleep(min(TOGETHER, max(0.0, until - loop.time())))


_LISTS_ON = 60_000
"""How long, in milliseconds, a token that was used to replace itself can still list tools."""
_ENCODER = msgspec.json.Encoder(order="deterministic")


_TO_BE_MADE = 0
"""A project id that means all projects that do not exist yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AnswerKey:
    """The key under which the result of a call is stored, with a digest of the call's arguments."""

    scope: str
    key: str
    digest: str


def _nobody() -> None:
    """Do nothing."""


class Mail:
    """The mail service for agents.

    A change is durable when the call returns. A call with an idempotency key can be repeated safely.
    """

    def __init__(  # noqa: PLR0913 - every port by name
        self,
        store: MailStore,
        clock: Clock,
        rules: Rules | None = None,
        *,
        dice: Callable[[int], random.Random] = random.Random,
        keep_token: Callable[[str, str], tuple[str, str]] | None = None,
        tracing: Tracing = OFF,
        waker: Callable[[], "Waker | None"] = _nobody,
    ) -> None:
        """Create the mail service.

        `keep_token` creates a token for an agent and stores the token in a private file. `waker` returns the
        object that wakes the recipients of a message. Without a waker, a periodic search wakes the
        recipients.
        """
        self.store = store
        self.clock = clock
        self.rules = rules or Rules()
        self._dice = dice
        self.tracing = tracing
        self.changes = MailChanges(store.changes)
        """Notifies callers that wait for messages."""
        self._keep_token = keep_token
        self._waker = waker
        self._rotating = asyncio.Lock()
        self._folders = Repositories(store)
        """Reads the folders of projects."""
        self._replaced: dict[str, int] = {}
        """The times until which tokens that were used to replace themselves can list tools, keyed by hash."""

    async def call(self, name: str, arguments: dict[str, Any], *, caller: Caller | None = None) -> Any:
        """Perform the operation with the given name and JSON arguments, and return the JSON result.

        Raises:
            KeyError: The operation does not exist.
            PostroomError: The operation failed. Nothing was changed.
        """
        operation = OPERATIONS[name]
        return await self.perform(
            operation, read_command(operation.command, arguments, name), caller=caller or Caller()
        )

    async def perform(self, operation: Operation, command: Command, *, caller: Caller) -> Any:
        """Perform an operation.

        A command with an idempotency key changes the data only once, and repeated calls return the first
        result.

        Raises:
            InsufficientScope, NotPermitted: The caller's named token lacks a permission.
        """
        if caller.grant is not None:
            operation.check(caller.grant)
        if isinstance(command, RotateAgentToken):
            return await self._rotate(command, caller)
        if operation.settled:
            await self.store.settle()
        if not operation.changes:
            return await self._read(operation, command, caller)
        answer = await self._change(operation, command, caller)
        if isinstance(command, ReplyMessage) and caller.grant is not None and not caller.grant.scopes & READ:
            for delivery in answer["deliveries"]:  # the caller may not read the first message
                delivery["payload"] |= {"subject": "", "topic": ""}
        return answer

    async def _read(self, operation: Operation, command: Command, caller: Caller) -> Any:
        """Perform a read operation, and renew the claims of the calling agent."""
        may_renew = caller.grant is None or bool(caller.grant.scopes & RESERVE)

        def look(tx: MailReads) -> tuple[Any, list[int]]:
            context = self.context(tx, caller)
            refuse_unknown_token(context)
            answer = operation.run(context, command)
            readers = context.active | ({caller.agent_id} if caller.agent_id is not None else set())
            return answer, [
                reader for reader in readers if may_renew and tx.is_renewal_due(reader, context.now)
            ]

        answer, due = await self.store.read(look)

        def renew(tx: MailWrites) -> None:
            for agent_id in due:
                tx.touch_agent(agent_id, tx.now())

        if due:
            try:
                await self.store.write(renew)
            except StoreError as error:
                _LOG.warning("claim.not_renewed", agent_ids=due, code=error.code, reason=error.message)
        return answer

    async def issue_token(self, project_key: str, agent_name: str, hashed: str | None) -> None:
        """Store the hash of an agent's new token, or revoke the token if `hashed` is None.

        Only the operator may issue tokens.

        Raises:
            UnknownProject, UnknownAgent: The project or agent does not exist.
        """

        def change(tx: MailWrites) -> None:
            project = find_project(tx, project_key)
            tx.set_agent_token(find_agent(tx, project, agent_name).id, hashed)

        await self.store.write(change)

    async def _rotate(self, command: RotateAgentToken, caller: Caller) -> RotatedToken:
        """Write a new token for an agent to a file on the server."""
        if self._keep_token is None:
            raise NotPermitted(
                "this server does not store token files",
                remedy="the operator runs `postroom agents token` on the server",
            )

        def look(tx: MailReads) -> tuple[str, str, bool]:
            project, agent = acting(self.context(tx, caller), command.project_key, command.agent_name)
            return project.slug, agent.name, agent.token_hash is not None

        async with self._rotating:  # the file and the database must get the same token
            slug, name, has_token = await self.store.read(look)
            if has_token and caller.agent_token is None and not caller.operator:
                raise TokenRequired(
                    f"{name} has a token; only {name} or the operator may replace it", value=name
                )
            token, path = await asyncio.to_thread(self._keep_token, slug, name)
            await self.issue_token(slug, name, token_hash(token))
            if caller.agent_token is not None:
                now = self.clock.now()
                self._replaced = {token: until for token, until in self._replaced.items() if until > now}
                self._replaced[token_hash(caller.agent_token)] = now + _LISTS_ON
        return {"agent": name, "token_file": path}

    async def slugs(self, caller: Caller, *, limit: int) -> list[str]:
        """Return the slugs of at most `limit` projects that the caller may see, ordered by project id."""
        projects = await self.store.read(lambda tx: self.context(tx, caller).projects.projects(limit=limit))
        return [project.slug for project in projects]

    async def slug(self, project_key: str) -> str:
        """Return the slug of the project with the given key.

        Raises:
            UnknownProject: The project does not exist.
        """
        return await self.store.read(lambda tx: find_project(tx, project_key).slug)

    async def read_trace(self, message_id: int | str) -> str | None:
        """Return the trace position at which a message was written, or None for an untraced message."""
        name = message_trace(message_id)
        return await self.store.read(lambda tx: tx.traces([name]).get(name))

    async def knows_token(self, token: str) -> bool:
        """Return whether a token belongs to an agent, or was replaced a moment ago.

        No operation accepts a replaced token.
        """
        hashed = token_hash(token)
        if self._replaced.get(hashed, 0) > self.clock.now():
            return True
        return await self.store.read(lambda tx: tx.agent_by_token(hashed) is not None)

    def own_context(self, tx: Transaction, accept: Accept | None = None) -> WriteContext:
        """Return the context for operations that postroom itself performs.

        With `accept`, the transaction wakes the recipients of messages.
        """
        waker = None if accept is None else self._waker()
        waking = None if waker is None or accept is None else waker.opened(tx, accept)
        return self.context(tx.mail, Caller(), waking=waking)

    async def set_runner(  # noqa: PLR0913 - the terms of a runner
        self,
        project_key: str,
        agent_name: str,
        runner: str | None,
        *,
        place: str = "",
        runs_at_once: int = 1,
        declared_by: RunnerSource = "operator",
        claims_tasks: bool = False,
    ) -> RunnerChange:
        """Set the runner of an agent, or remove the runner if `runner` is None.

        Only the operator may set runners. `place` names the servers that may execute the agent's runs; ""
        means all servers. `runs_at_once` is the maximum number of concurrent runs, each on a separate mail
        thread. With `claims_tasks`, the server claims tasks for the agent. Return whether the agent had a
        runner before, and the number of runs that start now.

        Raises:
            UnknownProject, UnknownAgent: The project or agent does not exist.
        """

        def change(tx: MailWrites) -> RunnerChange:
            project = find_project(tx, project_key)
            tx.lock_projects([project.id])
            agent = find_agent(tx, project, agent_name)
            for lane in range(max(agent.runs_at_once, runs_at_once)):
                tx.put_place(agent_thread(project.slug, agent.name, lane), place)
            if runs_at_once != agent.runs_at_once:
                tx.put_runs_at_once(agent.id, runs_at_once)
            if runner is None:
                lanes = [agent_thread(project.slug, agent.name, lane) for lane in range(MAX_RUNS_AT_ONCE)]
                asking = tx.waiting_runs(lanes).values()
                return RunnerChange(
                    had_one=tx.drop_runner(agent.id, now=tx.now()),
                    questions=[number_of(run.run_id, one) for run in asking for one in run.open_tickets],
                )
            has_runner, waking = tx.runner(agent.id) is not None, tx.unwoken_count(agent.id)
            tx.put_runner(agent.id, runner, declared_by=declared_by, now=tx.now(), claims_tasks=claims_tasks)
            return RunnerChange(had_one=has_runner, waking=waking)

        return await self.store.write(change)

    async def set_chat_address(self, project_key: str, person: str, address: ChatAddress | None) -> bool:
        """Set a person's chat address, or remove the address if `address` is None.

        Only the operator may set chat addresses. Return whether the person had a chat address before.

        Raises:
            UnknownProject, UnknownAgent: The project or person does not exist.
        """

        def change(tx: MailWrites) -> bool:
            project = find_project(tx, project_key)
            tx.lock_projects([project.id])
            agent = find_agent(tx, project, person)
            if address is None:
                return tx.drop_chat_address(agent.id, now=tx.now())
            has_address = tx.chat_address(agent.id) is not None
            tx.put_chat_address(agent.id, address, now=tx.now())
            return has_address

        return await self.store.write(change)

    def context(
        self,
        tx: Any,
        caller: Caller,
        loaded: Sequence[LoadedAttachment] = (),
        waking: "OpenChange | None" = None,
        recognition: Recognition | None = None,
        seed: int = 0,
    ) -> OperationContext[Any, Any]:
        """Return the context in which operations of a caller execute."""
        bound = caller.grant.project_id if caller.grant is not None else None
        return OperationContext(
            tx=tx,
            projects=OneProject(tx, bound) if bound is not None else tx,
            now=tx.now(),
            rules=self.rules,
            caller=caller,
            dice=self._dice(seed),
            loaded=loaded,
            recognition=recognition,
            is_traced=self.tracing.is_on,
            waking=waking,
        )

    async def _change(self, operation: Operation, command: Command, caller: Caller) -> Any:
        """Make a change, or return the stored result for a repeated idempotency key."""
        keyed = isinstance(command, Change) and command.idempotency_key is not None
        place = _result_key(operation, command) if keyed else None
        attached = isinstance(command, SendMessage | ReplyMessage) and command.attachments
        is_slow = bool(attached) or isinstance(command, EnsureProject | StartSession)
        if place is not None and is_slow:
            # Look for the stored result of the first call before anything else, because the files that it
            # read may no longer exist.
            before = await self.store.read(lambda tx: self._answer_before(tx, place, command, caller))
            if before is not None:
                return before
        loaded = await self._prepare(command, caller) if is_slow else ()
        recognition = await self._recognition(command, caller) if is_slow else None
        seed = random.SystemRandom().getrandbits(64)

        def change(tx: MailWrites, waking: "OpenChange | None" = None) -> Any:
            if caller.claim is not None:
                tx.refuse_stale(caller.claim)
            lock_for_command(tx, command)
            context = self.context(tx, caller, loaded, waking, recognition, seed)
            if caller.agent_token is not None:
                refuse_unknown_token(context)
            if place is None:
                return operation.run(context, command)
            if (before := self._answer_before(tx, place, command, caller)) is not None:
                if isinstance(command, AskPerson):
                    return ask_person_again(context, command, before)
                return before
            answer = operation.run(context, command)
            tx.insert_answer(place.scope, place.key, place.digest, msgspec.json.encode(answer), context.now)
            return answer

        key = home_of(command)
        waker = self._waker()
        if waker is None:
            answer = await self.store.write(change, key=key)
        else:
            readers = named_readers(command)
            answer = await waker.write(change, key=key, readers=readers)
        if not isinstance(command, ReservePaths):
            return answer
        root = await self.store.read(lambda tx: find_project(tx, command.project_key).human_key)
        patterns = [one["path"] for one in answer["granted"]]
        sensitive = self.rules.case_sensitive_paths
        found = await asyncio.to_thread(unmatched, root, patterns, case_sensitive=sensitive)
        return {**answer, "unmatched": found} if found else answer

    def _answer_before(self, tx: MailReads, place: _AnswerKey, command: Command, caller: Caller) -> Any:
        stored = tx.answer(place.scope, place.key)
        if stored is None:
            return None
        self._refuse_others(tx, command, caller)
        if stored.digest != place.digest:
            raise IdempotencyConflict(
                f"key {place.key!r} was already used for a different call", value=place.key
            )
        return msgspec.json.decode(stored.answer)

    def _refuse_others(self, tx: MailReads, command: Command, caller: Caller) -> None:
        context = self.context(tx, caller)
        refuse_unknown_token(context)
        project, actor = named_in(command)
        if _is_bound(caller):
            find_project(context.projects, project)
        if isinstance(command, RegisterAgent | CreateAgentIdentity | StartSession):
            if caller.operator:
                return
            if not actor:
                refuse_making(context)
        if actor:
            acting(context, project, actor)

    async def _prepare(self, command: Command, caller: Caller) -> Sequence[LoadedAttachment]:
        """Read the files that a command needs before the transaction begins."""
        if isinstance(command, SendMessage | ReplyMessage) and command.attachments:
            # Check that the caller may act as the sender, and find the folder of the sender's project.
            def look(tx: MailReads) -> str:
                project, _ = acting(self.context(tx, caller), command.project_key, command.sender_name)
                return project.human_key

            root = await self.store.read(look)
            return await asyncio.to_thread(load_attachments, command.attachments, root=root, rules=self.rules)
        return ()

    async def _recognition(self, command: Command, caller: Caller) -> Recognition | None:
        is_looked_at = isinstance(command, StartSession | EnsureProject) and not (
            isinstance(command, EnsureProject) and command.git_identity
        )
        if not is_looked_at or _is_bound(caller) or self.rules.projects_by != "repository":
            return None  # a caller bound to a project cannot create projects or aliases
        return await self._folders.recognised(home_of(command), may_move=caller.agent_id is None)


def _is_bound(caller: Caller) -> bool:
    return caller.grant is not None and caller.grant.project_id is not None


def named_in(command: Command) -> tuple[str, str]:
    """Return the project and the agent that a command names, or "" for a missing name."""
    fields: Mapping[str, Any] = msgspec.structs.asdict(command)
    project = fields.get("project_key") or fields.get("human_key") or ""
    return project, fields.get("sender_name") or fields.get("agent_name") or fields.get("name") or ""


def _result_key(operation: Operation, command: Command) -> _AnswerKey | None:
    key = command.idempotency_key if isinstance(command, Change) else None
    if key is None:
        return None
    body = msgspec.structs.replace(command, idempotency_key=None)
    project, actor = named_in(command)
    return _AnswerKey(
        scope=f"{project}\n{actor.casefold()}",
        key=key,
        digest=hashlib.sha256(_ENCODER.encode([operation.name, body])).hexdigest(),
    )


def home_of(command: Command) -> str:
    """Return the key of the project that a command names."""
    named: str = getattr(command, "project_key", "") or getattr(command, "human_key", "")
    return named


def lock_for_command(tx: MailWrites, command: Command) -> None:
    """Lock the projects that a command may change.

    Call `lock_for_command` before the transaction reads anything.
    """
    named, home = projects_of(tx, command), tx.project(home_of(command))
    expected = list[tuple[int, str]]()  # the agents that the operation reads next
    if home is not None:
        fields = msgspec.structs.asdict(command)
        addresses = [address for kind in ("to", "cc", "bcc") for address in fields.get(kind) or ()]
        names = [
            fields.get("sender_name"),
            *[address for address in addresses if "@" not in address and ":" not in address],
        ]
        expected = [(home.id, name) for name in dict.fromkeys(names) if name]
    tx.lock_projects(named, expected)
    if _TO_BE_MADE in named:  # another change may have created the project before this one got the lock
        tx.lock_projects(projects_of(tx, command))


def projects_of(tx: MailReads, command: Command) -> set[int]:
    """Return the ids of all projects whose logs, agents or messages a command may change."""
    keys, fields = {home_of(command)}, msgspec.structs.asdict(command)
    for name in ("to", "cc", "bcc", "requester"):
        named = fields.get(name) or ()
        for address in [named] if isinstance(named, str) else named:
            if address.startswith(PERSONS):
                keys.add(PEOPLE_KEY)
            elif "@" in address:
                keys.add(address.partition("@")[2])
    ids = set[int]()
    for key in keys:
        project = tx.project(key)
        if project is None:
            with suppress(InvalidPath):  # in this case, the message does not exist
                project = tx.project(checked_path(key))
        ids.add(_TO_BE_MADE if project is None else project.id)
    message_id, task_id = fields.get("message_id"), fields.get("task_id")
    if isinstance(task_id, int) and (task := tx.task(task_id)) is not None:  # the author may be a person
        ids |= {author.project_id for author in tx.agents_by_id([task.author_id]).values()}
    if not isinstance(message_id, int) or (message := tx.message(message_id)) is None:
        return ids
    if isinstance(command, ReplyMessage | RecallMessage):
        readers = [recipient.agent_id for recipient in tx.recipients([message.id])[message.id]]
        agents = tx.agents_by_id([message.sender_id, *readers]).values()
        ids |= {agent.project_id for agent in agents}
    return ids | {message.project_id}

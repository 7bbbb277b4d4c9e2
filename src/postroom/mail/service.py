"""Runs operations: reads their command, does what must happen before the transaction, keeps answers by key."""

import asyncio
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from postroom.contracts.clock import Clock, milliseconds
from postroom.contracts.errors import IdempotencyConflict, NotPermitted, PostroomError, TokenRequired
from postroom.contracts.mail import Project
from postroom.contracts.store import MailReads, MailStore, MailWrites
from postroom.mail.attachments import load_attachments
from postroom.mail.commands import (
    Change,
    Command,
    EnsureProject,
    ReplyMessage,
    RotateAgentToken,
    SendMessage,
    StartSession,
    read_command,
)
from postroom.mail.desk import Caller, Desk, LoadedAttachment, Rules, token_hash
from postroom.mail.git_identity import read_git_identity
from postroom.mail.identity import acting, find_agent
from postroom.mail.operations import OPERATIONS, Operation
from postroom.mail.projects import checked_path, find_project, spelling

_ENCODER = msgspec.json.Encoder(order="deterministic")
PURGE_EVERY = 1_000
PURGE_LIMIT = 2_000


class Mail:
    """Agent mail over a store: every change is durable when its call returns, and repeats under its key."""

    def __init__(
        self, store: MailStore, clock: Clock, rules: Rules | None = None, dice: random.Random | None = None
    ) -> None:
        self.store = store
        self.clock = clock
        self.rules = rules or Rules()
        self._dice = dice or random.SystemRandom()
        self.on_change: Callable[[], None] | None = None
        """Called after each change, as a hint to whoever performs its effects."""
        self.keep_token: Callable[[str, str], tuple[str, str]] | None = None
        """Makes a token for the agent of a project, keeps it in a private file, returns token and path."""
        self._changes = 0

    async def call(self, name: str, arguments: dict[str, Any], *, caller: Caller | None = None) -> Any:
        """Perform the operation of this name on plain arguments and return its plain answer.

        Raises:
            KeyError: there is no such operation.
            PostroomError: it was refused; nothing changed.
        """
        operation = OPERATIONS[name]
        return await self.perform(operation, read_command(operation.command, arguments), caller=caller or Caller())

    async def perform(self, operation: Operation, command: Command, *, caller: Caller) -> Any:
        """Perform an operation; a change with an idempotency key is done once and answered alike each time."""
        if isinstance(command, RotateAgentToken):
            return await self._rotate(command, caller)
        command, loaded = await self._prepared(command, caller)
        if not operation.changes:
            return await self.store.read(lambda tx: operation.run(self._desk(tx, caller, loaded), command))
        if isinstance(command, Change) and command.idempotency_key is not None:
            answer = await self._once(operation, command, caller, loaded)
        else:
            answer = await self.store.write(lambda tx: operation.run(self._desk(tx, caller, loaded), command))
        if self.on_change is not None:
            self.on_change()
        return answer

    async def issue_token(self, project_key: str, agent_name: str, hashed: str | None) -> None:
        """Replace an agent's token by its hash, or revoke it with None; for the operator alone.

        Raises:
            UnknownProject, UnknownAgent: there is none of that name.
        """

        def change(tx: MailWrites) -> None:
            project = find_project(tx, project_key)
            tx.set_agent_token(find_agent(tx, project, agent_name).id, hashed)

        await self.store.write(change)

    async def _rotate(self, command: RotateAgentToken, caller: Caller) -> dict[str, str]:
        """Give the agent a new token in a file of the server; a model that asks never sees it."""
        if self.keep_token is None:
            raise NotPermitted(
                "this server keeps no token files", remedy="run `postroom agents token` on the server"
            )

        def look(tx: MailReads) -> tuple[str, str, bool]:
            project, agent = acting(self._desk(tx, caller), command.project_key, command.agent_name)
            return project.slug, agent.name, agent.token_hash is not None

        slug, name, has_token = await self.store.read(look)
        if has_token and caller.agent_token is None and not caller.operator:
            raise TokenRequired(f"{name} has a token; only it or the operator may replace it", value=name)
        token, path = await asyncio.to_thread(self.keep_token, slug, name)
        await self.issue_token(slug, name, token_hash(token))
        return {"agent": name, "token_file": path}

    async def check_identity(self, project_key: str, agent_name: str, caller: Caller) -> tuple[str, str]:
        """Return slug and name of the agent the caller acts as, or refuse as any operation would."""

        def look(tx: MailReads) -> tuple[str, str]:
            project, agent = acting(self._desk(tx, caller), project_key, agent_name)
            return project.slug, agent.name

        return await self.store.read(look)

    async def slug(self, project_key: str) -> str:
        """Return the slug of the project that a key names.

        Raises:
            UnknownProject: there is none.
        """
        return await self.store.read(lambda tx: find_project(tx, project_key).slug)

    async def knows_token(self, token: str) -> bool:
        """Whether a token belongs to some agent."""
        hashed = token_hash(token)
        return await self.store.read(lambda tx: tx.agent_by_token(hashed) is not None)

    def _desk(self, tx: Any, caller: Caller, loaded: Sequence[LoadedAttachment] = ()) -> Desk[Any]:
        return Desk(
            tx=tx, now=self.clock.now(), rules=self.rules, caller=caller, dice=self._dice, loaded=loaded
        )

    async def _once(
        self, operation: Operation, command: Change, caller: Caller, loaded: Sequence[LoadedAttachment]
    ) -> Any:
        key = command.idempotency_key or ""
        body = msgspec.structs.replace(command, idempotency_key=None)
        digest = hashlib.sha256(_ENCODER.encode([operation.name, body])).hexdigest()
        scope = _scope(command)

        def change(tx: MailWrites) -> Any:
            if stored := tx.answer(scope, key):
                if stored.digest != digest:
                    raise IdempotencyConflict(f"key {key!r} was used with another call", value=key)
                self._refuse_others(tx, command, caller)
                return msgspec.json.decode(stored.answer)
            answer = operation.run(self._desk(tx, caller, loaded), command)
            tx.insert_answer(scope, key, digest, msgspec.json.encode(answer), self.clock.now())
            return answer

        answer = await self.store.write(change)
        self._changes += 1
        if self._changes % PURGE_EVERY == 0:
            before = self.clock.now() - milliseconds(self.rules.answer_retention)
            await self.store.write(lambda tx: tx.purge_answers(before, limit=PURGE_LIMIT))
        return answer

    def _refuse_others(self, tx: MailWrites, command: Change, caller: Caller) -> None:
        """An answer given before is shown to the agent it was given to, and to nobody else."""
        project, actor = _named(command)
        if project and actor and not isinstance(command, EnsureProject):
            acting(self._desk(tx, caller), project, actor)

    async def _prepared(self, command: Command, caller: Caller) -> tuple[Command, Sequence[LoadedAttachment]]:
        """Do the slow look-ups that must not happen inside a transaction."""
        if isinstance(command, EnsureProject | StartSession):
            return await self._with_git_identity(command), ()
        if isinstance(command, SendMessage | ReplyMessage) and command.attachments:
            root = await self._root_for(command, caller)
            loaded = await asyncio.to_thread(load_attachments, command.attachments, root=root, rules=self.rules)
            return command, loaded
        return command, ()

    async def _root_for(self, command: SendMessage | ReplyMessage, caller: Caller) -> str:
        """Return the project's folder, to a caller who may act there: files are read for nobody else."""

        def look(tx: MailReads) -> str:
            project, _ = acting(self._desk(tx, caller), command.project_key, command.sender_name)
            return project.human_key

        return await self.store.read(look)

    async def _with_git_identity(self, command: EnsureProject | StartSession) -> Command:
        """Ask Git only when another spelling of the same folder is known."""
        if isinstance(command, StartSession) or command.git_identity:
            return command
        path = checked_path(command.human_key)

        def look(tx: MailReads) -> list[Project]:
            return [] if tx.project(path) else tx.projects_spelled(spelling(path))

        alike = await self.store.read(look)
        for known in alike:
            ours = await asyncio.to_thread(read_git_identity, path)
            theirs = known.git_identity or await asyncio.to_thread(read_git_identity, known.human_key)
            if ours and ours == theirs:
                await self.store.write(lambda tx, known=known: tx.set_git_identity(known.id, ours))
                return msgspec.structs.replace(command, git_identity=ours)
        return command


def _named(command: Change) -> tuple[str, str]:
    fields: Mapping[str, Any] = msgspec.structs.asdict(command)
    project = fields.get("project_key") or fields.get("human_key") or ""
    return project, fields.get("sender_name") or fields.get("agent_name") or fields.get("name") or ""


def _scope(command: Change) -> str:
    """Keys of different projects and agents do not meet."""
    project, actor = _named(command)
    return f"{project}\n{actor.casefold()}"


def refusal_of(error: PostroomError) -> dict[str, object]:
    """Return a refusal as plain data, the same on every edge."""
    return {"error": error.as_dict()}



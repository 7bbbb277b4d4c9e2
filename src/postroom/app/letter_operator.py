"""Letters that people write at the pages: sent as an agent of the project whose program is `human`."""

import asyncio
from pathlib import Path
from typing import Any, Final

from postroom.contracts.errors import NameTaken, TokenRequired
from postroom.contracts.mail import Agent
from postroom.contracts.store import MailReads
from postroom.mail.desk import Caller, token_hash
from postroom.mail.projects import find_project
from postroom.mail.service import Mail
from postroom.mcp_server.calls import Calls
from postroom.web.desks import Draft, Limits

HUMAN: Final = "human"
_OPERATOR: Final = Caller(operator=True)


class LetterOperator:
    """Writes letters of people who have logged in, which they did with the server's own token."""

    def __init__(self, mail: Mail, calls: Calls, tokens: Path) -> None:
        """`tokens` is the folder in which this server keeps tokens of agents."""
        self._mail = mail
        self._calls = calls
        self._tokens = tokens
        self._making = asyncio.Lock()

    @property
    def limits(self) -> Limits:
        """How much a letter may hold."""
        rules = self._mail.rules
        return Limits(subject_chars=rules.max_subject_chars, body_bytes=rules.max_body_bytes)

    async def send(self, slug: str, draft: Draft) -> int:
        """Send a letter and return its number; who writes for the first time is registered by it.

        Raises:
            NameTaken: the name belongs to an agent that is no person.
            TokenRequired: the person proves itself by a token that this server does not keep.
            PostroomError: it was refused; no letter was stored.
        """
        caller, name = await self._caller(slug, draft.name.strip())
        asked: dict[str, Any] = {
            "project_key": slug,
            "sender_name": name,
            "body_md": draft.body,
            "importance": draft.importance,
            "ack_required": draft.ack_required,
            "idempotency_key": f"page/{draft.key}",
        }
        if draft.answers is None:
            operation = "send_message"
            asked |= {"to": list(draft.to), "subject": draft.subject}
        else:
            operation = "reply_message"
            asked |= {"message_id": draft.answers, "reply_all": draft.to_all}
        sent = await self._calls.perform(operation, asked, caller=caller)
        return _number(sent)

    async def _caller(self, slug: str, name: str) -> tuple[Caller, str]:
        """Return with what proof, and under which name, a person acts; a new name is registered.

        Raises:
            NameTaken, InvalidName, UnknownProject, TokenRequired: nobody may act so.
        """
        known = await self._mail.store.read(lambda tx: _known(tx, slug, name))
        if known is None:
            asked = {"project_key": slug, "name": name, "program": HUMAN, "model": "none"}
            await self._calls.perform("register_agent", asked, caller=_OPERATOR)
            known = await self._mail.store.read(lambda tx: _known(tx, slug, name))
        if known is None or known.program != HUMAN:
            what = "nobody" if known is None else known.program
            raise NameTaken(
                f"{name!r} is the name of an agent of this project, and it is no person ({what})",
                value=name,
                remedy="write under a name of your own",
            )
        if not self._mail.rules.verified:
            return _OPERATOR, known.name
        return Caller(operator=True, agent_token=await self._token(slug, known)), known.name

    async def _token(self, slug: str, person: Agent) -> str:
        """Return the token of a person, for where all who act prove who they are.

        Raises:
            TokenRequired: it was made elsewhere, or none can be kept here.
        """
        async with self._making:
            if person.token_hash is not None:
                kept = await asyncio.to_thread(_read, self._tokens / slug / person.name)
            else:
                kept = await self._made(slug, person.name)
        if kept is None:
            raise TokenRequired(
                f"{person.name} has a token that this server does not keep",
                value=person.name,
                remedy="write under another name",
            )
        return kept

    async def _made(self, slug: str, name: str) -> str | None:
        """Make the first token of a person, kept in a file of the server alone."""
        if self._mail.keep_token is None:
            return None
        token, _ = await asyncio.to_thread(self._mail.keep_token, slug, name)
        await self._mail.issue_token(slug, name, token_hash(token))
        return token


def _known(tx: MailReads, slug: str, name: str) -> Agent | None:
    return tx.agent(find_project(tx, slug).id, name)


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None


def _number(sent: Any) -> int:
    return int(sent["deliveries"][0]["payload"]["id"])

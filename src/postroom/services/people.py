"""People as the operator names them: who may be written to by name, and in which chat they are reached."""

from collections.abc import Callable, Mapping, Sequence

from postroom.contracts.people import ChatAddress
from postroom.contracts.store import MailReads
from postroom.mail.context import Caller
from postroom.mail.projects import HUMAN, PEOPLE_KEY, PEOPLE_SLUG
from postroom.mail.service import Mail

_POSTROOM = Caller(postroom=True, operator=True)
_MOST = 10_000


class PeopleService:
    """Answers the operator's routes to people. `reaches` says whether there is a channel to a chat."""

    def __init__(self, mail: Mail, reaches: Callable[[ChatAddress], bool]) -> None:
        self._mail = mail
        self._reaches = reaches

    async def add(self, name: str, chat: str | None) -> Mapping[str, object]:
        """Name a person, or give one who is named another chat, or none."""
        address = None if chat is None else ChatAddress.parse(chat)
        await self._mail.call("ensure_project", {"human_key": PEOPLE_KEY}, caller=_POSTROOM)
        who = {"project_key": PEOPLE_SLUG}
        if await self._mail.store.read(lambda tx: _is_retired(tx, name)):
            await self._mail.call("unretire_agent", {**who, "agent_name": name}, caller=_POSTROOM)
        made = {**who, "name": name, "program": "human", "model": "none"}
        view = await self._mail.call("register_agent", made, caller=_POSTROOM)
        await self._mail.set_chat_address(PEOPLE_SLUG, view["name"], address)
        return self._shown(view["name"], address)

    async def remove(self, name: str) -> bool:
        """Have a person written to no more; their messages are kept. False when they were not named."""
        known = await self._mail.store.read(lambda tx: _active(tx, name))
        if known is None:
            return False
        await self._mail.set_chat_address(PEOPLE_SLUG, known, None)
        await self._mail.call(
            "retire_agent", {"project_key": PEOPLE_SLUG, "agent_name": known}, caller=_POSTROOM
        )
        return True

    async def everybody(self) -> Sequence[Mapping[str, object]]:
        """Return those who are named, by when they were."""
        found = await self._mail.store.read(_everybody)
        return [{**self._shown(name, address), "unread": unread} for name, address, unread in found]

    def _shown(self, name: str, address: ChatAddress | None) -> dict[str, object]:
        return {
            "name": name,
            "address": f"{HUMAN}{name}",
            "chat": None if address is None else address.name,
            "reached": None if address is None else self._reaches(address),
        }


def _everybody(tx: MailReads) -> list[tuple[str, ChatAddress | None, int]]:
    project = tx.project(PEOPLE_KEY)
    if project is None:
        return []
    people = tx.agents(project.id, include_retired=False, limit=_MOST)
    return [(one.name, tx.chat_address(one.id), tx.unread_count(one.id)) for one in people]


def _active(tx: MailReads, name: str) -> str | None:
    project = tx.project(PEOPLE_KEY)
    known = None if project is None else tx.agent(project.id, name)
    return None if known is None or known.retired_at is not None else known.name


def _is_retired(tx: MailReads, name: str) -> bool:
    project = tx.project(PEOPLE_KEY)
    known = None if project is None else tx.agent(project.id, name)
    return known is not None and known.retired_at is not None

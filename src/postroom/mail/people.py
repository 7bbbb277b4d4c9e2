"""People: those whom the operator names, and visitors, whom a chat creates."""

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from postroom.contracts.people import ChatAddress
from postroom.mail.context import Caller
from postroom.mail.projects import PEOPLE_KEY, PEOPLE_SLUG, VISITOR
from postroom.stores.mail.access import MailReads

if TYPE_CHECKING:
    from postroom.mail.service import Mail

HUMAN_PROGRAM: Final = "human"
_OPERATOR = Caller(postroom=True, operator=True)
_DIGITS = 10


async def name_person(
    mail: "Mail", name: str, chat: ChatAddress | None, *, program: str = HUMAN_PROGRAM
) -> str:
    """Add a person, or change or remove the chat of an existing one; return the stored name.

    Raises:
        InvalidName, NameTaken: The name cannot be used.
    """
    await mail.call("ensure_project", {"human_key": PEOPLE_KEY}, caller=_OPERATOR)
    who = {"project_key": PEOPLE_SLUG}
    if await mail.store.read(lambda tx: _is_retired(tx, name)):
        await mail.call("unretire_agent", {**who, "agent_name": name}, caller=_OPERATOR)
    made = {**who, "name": name, "program": program, "model": "none"}
    view = await mail.call("register_agent", made, caller=_OPERATOR)
    await mail.set_chat_address(PEOPLE_SLUG, view["name"], chat)
    return str(view["name"])


def visitor_of(chat: ChatAddress) -> str:
    """Return the name of a person who has no registration, made from the chat's address."""
    return f"{chat.platform}-{sha256(chat.name.encode()).hexdigest()[:_DIGITS]}"


def is_named(tx: MailReads, name: str) -> bool:
    """Return whether the operator has added this person, and not removed them."""
    project = tx.project(PEOPLE_KEY)
    known = None if project is None else tx.agent(project.id, name)
    return known is not None and known.retired_at is None and known.program != VISITOR


def _is_retired(tx: MailReads, name: str) -> bool:
    project = tx.project(PEOPLE_KEY)
    known = None if project is None else tx.agent(project.id, name)
    return known is not None and known.retired_at is not None

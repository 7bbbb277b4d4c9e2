"""People who have messages: they stand in a project of their own, where only postroom itself acts for them.

A person is written to as `human:alice`, and one that is reached in a chat as `chat:telegram/123` too. What a
model may ask makes nobody a person and speaks for none: the operator names them, and a person answers from a
chat that the operator gave them or from the pages.
"""

from typing import Final

from postroom.contracts.errors import NotPermitted, UnknownAgent
from postroom.contracts.mail import Agent, Project
from postroom.contracts.people import ChatAddress
from postroom.contracts.store import ProjectReads, RecordReads
from postroom.mail.context import ReadContext
from postroom.mail.names import nearest, shown
from postroom.mail.projects import HUMAN, PEOPLE_KEY

CHAT: Final = "chat:"
_MOST: Final = 10_000


def refuse_to_speak_for(context: ReadContext, project: Project) -> None:
    """Raise `NotPermitted` when somebody other than postroom itself would act for a person, or make one."""
    if project.human_key == PEOPLE_KEY and not context.caller.postroom:
        raise NotPermitted(
            "no agent acts for a person, and none makes one",
            value=project.slug,
            remedy="the operator names people with `postroom people add`",
        )


def is_persons(address: str) -> bool:
    """Say whether an address names a person or a chat."""
    return address.startswith((HUMAN, CHAT))


def find_person(tx: RecordReads, projects: ProjectReads, address: str) -> tuple[Project, Agent]:
    """Return whom `human:name` or `chat:platform/id` names.

    Raises:
        UnknownAgent: nobody has that name or that chat; says which names come nearest.
    """
    project = projects.project(PEOPLE_KEY)
    everybody = [] if project is None else tx.agents(project.id, include_retired=True, limit=_MOST)
    if address.startswith(CHAT):
        platform, _, chat_id = address.removeprefix(CHAT).partition("/")
        reached = set(tx.reached_at(ChatAddress(platform=platform, chat_id=chat_id)))
        found = next((person for person in everybody if person.id in reached), None)
    else:
        name = address.removeprefix(HUMAN).casefold()
        found = next((one for one in everybody if one.name.casefold() == name), None)
    if project is not None and found is not None:
        return project, found
    close = [f"{HUMAN}{one}" for one in nearest(address.partition(":")[2], (one.name for one in everybody))]
    raise UnknownAgent(
        f"nobody is known as {shown(address)}" + (f"; the nearest are {', '.join(close)}" if close else ""),
        value=address,
        remedy="the operator names people with `postroom people add NAME [--chat PLATFORM/ID]`",
        details={"nearest": close},
    )

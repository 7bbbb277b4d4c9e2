"""Commands: what a person tells the gateway itself. They act at once, also while an agent is at work."""

from collections.abc import Callable
from dataclasses import dataclass

from postroom.contracts.chat_people import PersonRole


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command, who may use it, and what it is for."""

    name: str
    help: str
    usage: str = ""
    aliases: tuple[str, ...] = ()
    role: PersonRole = PersonRole.MEMBER


COMMANDS = (
    Command(name="help", help="list the commands", role=PersonRole.VIEWER),
    Command(name="status", help="what is at work here, and what waits", role=PersonRole.VIEWER),
    Command(name="stop", usage="[all]", help="end the turn at work; with `all` drop what waits as well"),
    Command(name="queue", usage="<text>", aliases=("q",), help="have this answered in a turn of its own"),
    Command(name="steer", usage="<text>", help="have the agent read this at its next step"),
    Command(
        name="busy",
        usage="[queue|collect|steer|interrupt|reject|default]",
        help="what happens here to messages while the agent is at work",
    ),
    Command(
        name="new", aliases=("reset",), help="begin a new conversation; what waits is dropped, and listed"
    ),
    Command(name="retry", help="have the last message answered again"),
    Command(name="undo", usage="[n]", help="have the last exchanges forgotten"),
    Command(name="title", usage="[name]", help="show or set the conversation's title"),
    Command(
        name="resume", usage="[title or number]", help="list earlier conversations, or take one up again"
    ),
    Command(name="search", usage="<words>", help="find what was said here, in earlier conversations too"),
    Command(name="usage", help="what this conversation has used up"),
    Command(
        name="approve", usage="[number]", help="say yes to what the agent asks", role=PersonRole.OPERATOR
    ),
    Command(name="deny", usage="[number] [why]", help="say no to it", role=PersonRole.OPERATOR),
    Command(name="reply", usage="<number> <text>", help="answer a message that came to this chat"),
    Command(
        name="background", usage="<text>", aliases=("bg",), help="have this done beside the conversation"
    ),
    Command(
        name="sethome", aliases=("set-home",), help="send here what answers nobody", role=PersonRole.OWNER
    ),
)
_BY_NAME = {name: one for one in COMMANDS for name in (one.name, *one.aliases)}


def resolve_command(name: str) -> Command | None:
    """Return the command of this name or alias."""
    return _BY_NAME.get(name)


def help_text(may_use: Callable[[Command], bool]) -> str:
    """Return what somebody who may use these commands is told of them."""
    lines = (f"/{one.name} {one.usage}".rstrip() + f": {one.help}" for one in COMMANDS if may_use(one))
    return "\n".join(lines)

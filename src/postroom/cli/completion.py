"""Shell completion with names and ids from the running server. Without a server, nothing is offered."""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from postroom.cli import show
from postroom.cli.call import perform
from postroom.cli.client import Server
from postroom.cli.options import HERE, project_key
from postroom.contracts.errors import PostroomError

_PATIENCE: Final = timedelta(seconds=2)
"""The time limit, which is short because a person who has pressed Tab is waiting."""

Pairs = Iterable[tuple[object, object]]
Look = Callable[[Server, str, str | None], Pairs]
"""A function that reads the values of a project, or of the acting agent if the command line names one."""
Complete = Callable[[Any, str], list[tuple[str, str]]]


def _completion_function(look: Look) -> Complete:
    def complete(ctx: Any, incomplete: str) -> list[tuple[str, str]]:
        try:
            server = Server.find(timeout=_PATIENCE)
            project = project_key(ctx.params.get("project") or HERE)
            items = list(look(server, project, ctx.params.get("acting")))
        except PostroomError:
            return []
        return [
            (value, show.line(about))
            for value, about in ((show.line(value), about) for value, about in items)
            if value.startswith(incomplete)
        ]

    return complete


def _list(server: Server, name: str) -> list[dict[str, Any]]:
    return show.items(perform(server, f"list_{name}").get(name))


def _tool(server: Server, name: str, **arguments: object) -> Mapping[str, Any]:
    return show.fields(server.call_tool(name, arguments))


def _projects(server: Server, _project: str, _acting: str | None) -> Pairs:
    return ((item["slug"], item["human_key"]) for item in _list(server, "projects"))


def _pages(server: Server, _project: str, _acting: str | None) -> Pairs:
    return ((f"/p/{item['slug']}", item["human_key"]) for item in _list(server, "projects"))


def _messages(server: Server, project: str, acting: str | None) -> Pairs:
    if acting is None:
        return ()
    arguments = {"project_key": project, "agent_name": acting, "limit": 50, "include_bodies": False}
    answer = show.items(server.call_tool("fetch_inbox", arguments))
    return ((item["id"], f"{item['from']}: {item['subject']}") for item in answer)


def _reservations(server: Server, project: str, acting: str | None) -> Pairs:
    answer = _tool(server, "list_file_reservations", project_key=project, agent_name=acting, limit=500)
    return (
        (item["id"], f"{item['path']}, {item['agent']}") for item in show.items(answer.get("reservations"))
    )


def _agents(server: Server, project: str, _acting: str | None) -> Pairs:
    answer = _tool(server, "list_agents", project_key=project, limit=1000)
    return ((item["name"], item["task_description"]) for item in show.items(answer.get("agents")))


def _threads(server: Server, project: str, _acting: str | None) -> Pairs:
    answer = _tool(server, "show_project", project_key=project)
    return ((item["thread_id"], item["subject"]) for item in show.items(answer.get("threads")))


def _runs(server: Server, _project: str, _acting: str | None) -> Pairs:
    items = _list(server, "runs")
    return (
        (item["run_id"], f"{item['agent']}@{item['project']}, {show.state_word(item['state'])}")
        for item in items
    )


def _questions(server: Server, _project: str, _acting: str | None) -> Pairs:
    items = _list(server, "questions")
    return ((item["number"], item["question"]) for item in items)


KINDS: Final[Mapping[str, Complete]] = {
    "projects": _completion_function(_projects),
    "pages": _completion_function(_pages),
    "messages": _completion_function(_messages),
    "reservations": _completion_function(_reservations),
    "agents": _completion_function(_agents),
    "threads": _completion_function(_threads),
    "runs": _completion_function(_runs),
    "questions": _completion_function(_questions),
}
"""The completion functions, keyed by the kind of value."""

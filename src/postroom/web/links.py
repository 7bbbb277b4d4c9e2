"""The addresses of the pages. Every part is quoted; parameters that say nothing are left out."""

from collections.abc import Sequence
from urllib.parse import quote, urlencode


def project(slug: str, *, done: str | None = None, answered: str | None = None) -> str:
    """Return the address of a project's control room, of it after something was decided there.

    `answered` is the run and the number of the question that was answered, with a slash between them.
    """
    return _with(f"/p/{_part(slug)}", done=done, answered=answered)


def agents(slug: str, *, after: int | None = None) -> str:
    """Return the address of a project's agents."""
    return _with(f"{project(slug)}/agents", after=after)


def agent(slug: str, name: str, *, box: str | None = None, before: int | None = None) -> str:
    """Return the address of an agent, of its messages in `inbox` or `sent`."""
    return _with(f"{project(slug)}/agents/{_part(name)}", box=box, before=before)


def timeline(  # noqa: PLR0913 - what the picture can be asked for, by name
    slug: str,
    *,
    agent: str = "",
    thread: str = "",
    length: str = "",
    begin: int | None = None,
    end: int | None = None,
    kind: str = "",
    opened: str = "",
    chosen: str = "",
) -> str:
    """Return the address of the timeline of a project, an agent or a thread.

    It follows the present by a length, or is that of a span; with one kind of marks or all, groups unfolded,
    and one thing chosen.
    """
    return _with(
        f"{project(slug)}/timeline",
        **{
            "agent": agent or None,
            "thread": thread or None,
            "span": length or None,
            "from": begin,
            "to": end,
            "kind": kind or None,
        },
        **{"open": opened or None, "sel": chosen or None},
    )


def threads(
    slug: str,
    *,
    before: int | None = None,
    show: str = "any",
    importance: str = "any",
    agent: str = "",
    person: str = "",
) -> str:
    """Return the address of a project's threads, of those that a filter wants."""
    asked = {"show": show, "importance": importance, "agent": agent, "person": person}
    given = {name: value for name, value in asked.items() if value not in ("any", "")}
    return _with(f"{project(slug)}/threads", **given, before=before)


def questions(slug: str, *, done: str | None = None, live: bool = False) -> str:
    """Return the address of a project's questions, of those after one was answered."""
    return _with(f"{project(slug)}/questions", done=done, live=1 if live else None)


def runs(  # noqa: PLR0913 - the fields of the filter, by name
    slug: str,
    *,
    live: bool = False,
    done: str | None = None,
    state: str = "",
    agent: str = "",
    q: str = "",
    before: Sequence[object] = (),
) -> str:
    """Return the address of the runs of a project's agents, or of those that a filter asks for."""
    given = {"state": state, "agent": agent, "q": q, "before": ".".join(map(str, before))}
    asked = {name: value for name, value in given.items() if value}
    return _with(f"{project(slug)}/runs", live=1 if live else None, done=done, **asked)


def schedules(slug: str, *, done: str | None = None, sent: int | None = None) -> str:
    """Return the address of a project's schedules, of those after one was changed, or sent a message."""
    return _with(f"{project(slug)}/schedules", done=done, sent=sent)


def run(slug: str, run_id: str, *, done: str | None = None, output: str | None = None) -> str:
    """Return the address of one run, or of its output alone: `whole` to be stored, `raw` to be read."""
    return _with(f"{project(slug)}/runs/{_part(run_id)}", done=done, output=output)


def write(slug: str, *, to: str | None = None, reply: int | None = None) -> str:
    """Return the address of the form for a message: a new one, one to an agent, or an answer."""
    return _with(f"{project(slug)}/write", to=to, reply=reply)


def thread(
    slug: str,
    thread_id: str,
    *,
    after: int | None = None,
    newest: bool = False,
    sent: int | None = None,
) -> str:
    """Return the address of a thread: from its beginning, behind a message, or its newest messages.

    `sent` is a message that was written there just now.
    """
    return _with(
        f"{project(slug)}/t/{_part(thread_id)}", after=after, newest=1 if newest else None, sent=sent
    )


def message(slug: str, message_id: int, *, sent: bool = False) -> str:
    """Return the address of one message, of one that was sent just now."""
    return _with(f"{project(slug)}/m/{message_id}", sent=1 if sent else None)


def mark(slug: str, message_id: int) -> str:
    """Return the address at which a person's mark on a message is taken."""
    return f"{message(slug, message_id)}/mark"


def source(slug: str, message_id: int) -> str:
    """Return the address of a message's text as it was written."""
    return f"{message(slug, message_id)}/source"


def reservations(slug: str, *, path: str | None = None) -> str:
    """Return the address of a project's reservations, of those that touch a path."""
    return _with(f"{project(slug)}/reservations", path=path)


def decide_reservations(slug: str) -> str:
    """Return the address at which is taken what a person decides of reservations that overlap."""
    return f"{reservations(slug)}/decide"


def search(slug: str, *, q: str | None = None, order: str | None = None, cursor: int | None = None) -> str:
    """Return the address of a search."""
    return _with(f"{project(slug)}/search", q=q, order=order, cursor=cursor)


def attachment(sha256: str, message_id: int, name: str) -> str:
    """Return the address of an attachment's bytes; it names the message that has it."""
    return _with(f"/attachments/{_part(sha256)}", message=message_id, name=name)


def preview(sha256: str, message_id: int) -> str:
    """Return the address of a picture that may be shown within a page."""
    return _with(f"/previews/{_part(sha256)}", message=message_id)


def projects(*, after: int | None = None) -> str:
    """Return the address of the list of projects."""
    return _with("/", after=after)


def _part(text: str) -> str:
    return quote(text, safe="", errors="replace")


def chats(run_id: str = "", *, done: str | None = None) -> str:
    """Return the address of the runs of chats that were given up, or of one; after one was decided on."""
    return _with(f"/chats/{_part(run_id)}" if run_id else "/chats", done=done)


def _with(address: str, /, **parameters: object) -> str:
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"{address}?{urlencode(given, errors='replace')}" if given else address

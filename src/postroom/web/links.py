"""Returns the addresses of pages. Every part is quoted, and empty parameters are omitted."""

from urllib.parse import quote, urlencode


def page(slug: str, *parts: object, **parameters: object) -> str:
    """Return the address of a project's page, or of the control room if `parts` is empty.

    A parameter that is None, False or "" is omitted. True becomes `1`, and a tuple is joined with dots.
    """
    path = "/p"
    for part in (slug, *parts):
        path += "/" + quote(str(part), safe="", errors="replace")
    return _address(path, parameters)


def attachment(sha256: str, message_id: int, name: str) -> str:
    """Return the address of an attachment in a message."""
    return _address(f"/attachments/{sha256}", {"message": message_id, "name": name})


def preview(sha256: str, message_id: int) -> str:
    """Return the address of an image that a page may display."""
    return f"/previews/{sha256}?message={message_id}"


def chats(run_id: str = "", *, done: str | None = None, answered: str | None = None) -> str:
    """Return the address of the list of chat runs, or of one chat run.

    `done` is the decision that a person made. `answered` is the run and the number of an answered question.
    """
    return _address(
        f"/chats/{quote(run_id, safe='', errors='replace')}" if run_id else "/chats",
        {"done": done, "answered": answered},
    )


def _address(path: str, parameters: dict[str, object]) -> str:
    given_fields = dict[str, object]()
    for name, value in parameters.items():
        if value is not None and value is not False and value != "":
            shown = ".".join(map(str, value)) if isinstance(value, tuple) else value
            given_fields[name] = "1" if value is True else shown
    return f"{path}?{urlencode(given_fields, errors='replace')}" if given_fields else path

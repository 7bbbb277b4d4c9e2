"""Reads the forms on the pages, with which people change data.

A form is read up to a size limit, and accepted only from the session for which it was created. The access
check has already rejected other origins. The token in the form is a second check. The token is derived from
the session's cookie, so only a person who can read the pages can submit a valid form.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated, Final, TypeVar, get_origin
from urllib.parse import parse_qsl, urlencode

import msgspec
from starlette.requests import Request

from postroom.contracts.errors import InvalidArgument, NotPermitted, TooLarge
from postroom.contracts.misfits import misfit
from postroom.services.login_codes import FORM_TOKEN, Sessions, typed_in
from postroom.services.people import DraftFile
from postroom.web.serving import read_cookies

FORM_TYPE: Final = "application/x-www-form-urlencoded"
FILES_TYPE: Final = "multipart/form-data"
"""The content type of a form with files."""
_BOUNDARY: Final = re.compile(r';\s*boundary="?([A-Za-z0-9\'()+_,./:=? -]{1,70})"?\s*$', re.IGNORECASE)
_FIELD: Final = re.compile(
    rb'^content-disposition:[ \t]*form-data;[ \t]*name="([^"\r\n]*)"(?:;[ \t]*filename="([^"\r\n]*)")?',
    re.IGNORECASE | re.MULTILINE,
)
SMALL_FORM: Final = 32 * 1024
"""Maximum bytes of a form that contains no message."""
MAX_FIELDS: Final = 1_000
MAX_AT_ONCE: Final = 100
"""Maximum number of runs that one button retries, cancels or dismisses."""
Number = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]
"""The type of the number of a record in a form."""
F = TypeVar("F", bound=msgspec.Struct)


class PlacedForm(msgspec.Struct):
    """A form that leads the person back to the same place in the list of questions."""

    asked_after: str = ""
    """The question after which the page begins, or "" for the first page of the list."""

    def home(self, **told: str) -> str:
        """Return the address of the first page, at the same place in the list of questions."""
        values = told | ({"asked_after": self.asked_after} if self.asked_after else {})
        return f"/?{urlencode(values)}" if values else "/"


async def read_form(
    request: Request, visitors: Sessions, kind: type[F], *, limit: int = SMALL_FORM, files_limit: int = 0
) -> F:
    """Read a form, and check that the form comes from the current session.

    A list field of `kind` gets every submitted text with the name of the field. A field of any type except
    list gets the first text that is not empty. If `files_limit` is given, the form may have `files` of at
    most that many bytes. `is_cut` is true if the files exceeded the limit.

    Raises:
        NotPermitted: The form belongs to another session. No field was used.
        TooLarge: The form has more than `limit` bytes.
        InvalidArgument: The body is not a form, or a field does not match `kind`.
    """
    if request.scope.get("state", {}).get("caller") != "person":
        raise NotPermitted(
            "forms require a person who is logged in",
            remedy="log in; programs use the command line, /v1 or /admin",
        )
    content_type = request.headers.get("content-type", "")
    type_given = content_type.partition(";")[0].strip().lower()
    files: Sequence[DraftFile] = ()
    if type_given == FILES_TYPE and files_limit and (boundary := _BOUNDARY.search(content_type)):
        body, is_cut = await _body(request, limit + files_limit)
        fields, files = await asyncio.to_thread(_parts, body, boundary[1].encode(), is_cut=is_cut)
    elif type_given == FORM_TYPE:
        body, is_cut = await _body(request, limit)
        if is_cut:
            raise TooLarge(
                f"the form exceeds {limit} bytes", value=limit, remedy="shorten the text; nothing was changed"
            )
        try:
            pairs = parse_qsl(
                body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
            )
        except ValueError as error:
            raise InvalidArgument(
                "the fields of the form cannot be read", remedy="reload the page"
            ) from error
        fields = {}
        for name, text in pairs:
            fields.setdefault(name, []).append(text)
    else:
        raise InvalidArgument("the request is not a form from these pages", remedy=f"send it as {FORM_TYPE}")
    request.state.typed = typed_in(fields)
    if not visitors.takes_form(read_cookies(request), next(iter(fields.get(FORM_TOKEN, [])), "")):
        raise NotPermitted(
            "the form belongs to another session; nothing was changed",
            remedy="reload the page, and submit its form again",
        )
    values: dict[str, object] = {}
    for field in msgspec.structs.fields(kind):
        texts = [text.replace("\r\n", "\n") for text in fields.get(field.name, ()) if text]
        if texts and field.name not in ("files", "is_cut"):
            values[field.name] = texts if get_origin(field.type) is list else texts[0]
    try:
        form = msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidArgument(
            f"the form is invalid: {misfit(str(error))}", remedy="reload the page"
        ) from error
    return msgspec.structs.replace(form, files=tuple(files), is_cut=is_cut) if files_limit else form


class RunForm(msgspec.Struct):
    """The decision of a person about a run, or about several runs in a filtered list."""

    do: str = ""
    run: list[str] = []
    back: str = ""
    """The query of the filtered list in which the person decided about several runs."""


async def _body(request: Request, limit: int) -> tuple[bytes, bool]:
    """Return the body of a request, cut after `limit` bytes, and whether the body was cut."""
    parts, size = list[bytes](), 0
    async for part in request.stream():
        if size < limit:
            parts.append(part[: limit - size])
        size += len(part)
    return b"".join(parts), size > limit


def _parts(body: bytes, boundary: bytes, *, is_cut: bool) -> tuple[dict[str, list[str]], list[DraftFile]]:
    """Return the complete fields and files of a form.

    Raises:
        InvalidArgument: The form cannot be read.
    """
    fields: dict[str, list[str]] = {}
    files = list[DraftFile]()
    *parts, end = (b"\r\n" + body).split(b"\r\n--" + boundary, MAX_FIELDS + 1)
    is_whole = end.startswith(b"--") and not (parts and parts[0])
    heads = [part.removeprefix(b"\r\n").partition(b"\r\n\r\n") for part in parts[1:]]
    named = [(_FIELD.search(head), content) for head, _, content in heads]
    try:
        for match, content in named:
            if match is None or not (is_whole or is_cut):
                raise InvalidArgument("the fields of the form cannot be read", remedy="reload the page")
            name, filename = match[1].decode(), match[2]
            if filename is None:
                fields.setdefault(name, []).append(content.decode())
            elif filename:  # without a chosen file, the name is empty
                files.append(DraftFile(filename.decode().replace("%22", '"'), content))
    except UnicodeDecodeError as error:
        raise InvalidArgument("the fields of the form cannot be read", remedy="reload the page") from error
    return fields, files

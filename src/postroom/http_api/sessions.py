"""Logs people in to the pages, with the server's token or a one-time code, and issues a signed cookie.

The signature of the cookie is verified without the store. So the cookie is valid after a restart, and people
can log in even while nothing can be written. A cookie is valid for thirty days, or until the server's token
changes or the person logs out. A log-out is stored, so that no server accepts the cookie again. Codes are in
the store. Failed attempts are only in memory.
"""

import html
import re
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Match, Route

from postroom.contracts.clock import Clock, milliseconds
from postroom.contracts.errors import InvalidArgument, StoreError
from postroom.contracts.quoting import sentence
from postroom.http_api.errors import CHALLENGE
from postroom.log import get_logger
from postroom.services.administration import LinkView
from postroom.services.login_codes import FORM_TOKEN, SESSION_LIFE, LoginCodes, Sessions, typed_in
from postroom.services.statuses import status_of

MAX_FAILURES: Final = 10
FAILURE_WINDOW: Final = timedelta(minutes=1)
_MAX_CALLERS: Final = 1024
_FORM_TYPE: Final = "application/x-www-form-urlencoded"
_OWN: Final = re.compile(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]{0,2000}")
"""Matches a path on this server, with its query. Two slashes at the start would mean another server."""
_LOG = get_logger(__name__)


class Attempts:
    """Counts failed logins by network address.

    After ten failed logins within a minute, a network address must wait.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[int]] = OrderedDict()

    def failed(self, address: str) -> None:
        """Record a failed login from a network address."""
        self._failures.setdefault(address, deque(maxlen=MAX_FAILURES)).append(self._clock.now())
        self._failures.move_to_end(address)
        while len(self._failures) > _MAX_CALLERS:
            self._failures.popitem(last=False)

    def wait(self, address: str) -> int:
        """Return how many seconds a network address must wait before the next login, or 0."""
        failures = self._failures.get(address, deque())
        if len(failures) < MAX_FAILURES:
            return 0
        left = failures[0] + milliseconds(FAILURE_WINDOW) - self._clock.now()
        return max(0, -(-left // 1000))


class LoginService:
    """Provides the routes for login and logout."""

    def __init__(
        self, sessions: Sessions, codes: LoginCodes, clock: Clock, *, is_operator: Callable[[str], bool]
    ) -> None:
        self.codes = codes
        self._sessions = sessions
        self._is_operator = is_operator
        self._attempts = Attempts(clock)

    @property
    def cookie_name(self) -> str:
        """The name of the login cookie."""
        return self._sessions.cookie_name

    def routes(self) -> list[Route]:
        """Return the routes `/login` and `/logout`."""
        return [
            Route("/login", self._come, methods=["GET", "POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
        ]

    async def make_link(self, request: Request, path: str) -> LinkView:
        """Return a URL that logs a person in and opens the page `path`.

        Raises:
            InvalidArgument: The path is not the path of a page.
        """
        coming = {"type": "http", "method": "GET", "path": unquote(urlsplit(path).path)}
        is_shown = any(route.matches(coming)[0] is Match.FULL for route in request.app.routes)
        if path != own_address(path) or not is_shown:
            raise InvalidArgument(
                "the path is not a page of this server",
                value=path[:200],
                remedy="use a path such as /p/shop/runs",
            )
        leads_on = "" if path == "/" else f"&next={quote(path, safe='/')}"
        base = f"{request.url.scheme}://{request.headers['host']}"  # the host that the caller has named
        return {"url": f"{base}/login?code={await self.codes.make()}{leads_on}"}

    async def _come(self, request: Request) -> Response:
        return await (self._log_in if request.method == "POST" else self._show)(request)

    async def _show(self, request: Request) -> Response:
        code = request.query_params.get("code")
        if code is None or request.method == "HEAD":  # a preview of a link must not use up the code
            return _page("", status=200, then=own_address(request.query_params.get("next", "")))
        return await self._decide(
            request,
            lambda: self.codes.use(code),
            "this link was used before or has expired; request a new link",
            then=own_address(request.query_params.get("next", "")),
        )

    async def _log_in(self, request: Request) -> Response:
        form = await _read_form(request)
        if form is None:
            return _page("use the form on this page", status=415)
        if FORM_TOKEN in form:
            # The log-in had expired, so the guard has redirected a form of the page `found` to this address.
            # The log-in page shows the typed texts, so that they are not lost.
            origin = urlsplit(request.headers.get("referer", ""))
            shown = "".join(f'<pre tabindex="0">{html.escape(text)}</pre>' for text in typed_in(form))
            notice = "you were logged out, so nothing was sent"
            page = _page(
                notice + ("; copy what you typed:" if shown else ""),
                status=401,
                then=own_address(f"{origin.path}?{origin.query}" if origin.query else origin.path),
                below=shown,
            )
            page.headers.update(CHALLENGE)
            return page
        token = form.get("token", [""])[0].strip()
        then = own_address(form.get("next", [""])[0])

        async def accepts() -> bool:
            return self._is_operator(token)

        return await self._decide(request, accepts, "this is not the server's token", then=then)

    async def _decide(
        self, request: Request, accepts: Callable[[], Awaitable[bool]], refusal: str, *, then: str
    ) -> Response:
        address = request.client.host if request.client else ""
        wait = self._attempts.wait(address)
        if wait:
            page = _page(f"too many attempts; try again in {wait} seconds", status=429, then=then)
            page.headers["Retry-After"] = str(wait)
            return page
        if not await accepts():
            self._attempts.failed(address)
            _LOG.warning("login.refused", address=address)
            page = _page(refusal, status=401, then=then)
            page.headers.update(CHALLENGE)
            return page
        _LOG.info("login.accepted", address=address)
        answer = RedirectResponse(then, status_code=303)
        self._set(answer, self._sessions.issue(), SESSION_LIFE, secure=request.url.scheme == "https")
        return answer

    async def _log_out(self, request: Request) -> Response:
        cookies = "; ".join(request.headers.getlist("cookie"))
        form = await _read_form(request)
        if form is None:
            return _page("use a form of these pages", status=415)
        if not self._sessions.takes_form(cookies, form.get(FORM_TOKEN, [""])[0]):
            return _page("this form belongs to another session: load the page again", status=403)
        answer: Response = RedirectResponse("/login", status_code=303)
        try:
            await self._sessions.end(cookies)
        except StoreError as error:
            _LOG.warning("logout.not_stored", code=error.code, reason=error.message)
            notice = (
                f"this browser has deleted your session, but the server could not end it: {error.message}"
            )
            answer = _page(notice, status=status_of(error))
        self._set(answer, "", timedelta(0), secure=request.url.scheme == "https")
        return answer

    def _set(self, answer: Response, value: str, life: timedelta, *, secure: bool) -> None:
        answer.set_cookie(
            self._sessions.cookie_name,
            value,
            max_age=int(life.total_seconds()),
            path="/",
            secure=secure,
            httponly=True,
            samesite="strict",
        )


async def _read_form(request: Request) -> dict[str, list[str]] | None:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM_TYPE:
        return None
    return parse_qs((await request.body()).decode("utf-8", "replace"))


def login_address(then: str) -> str:
    """Return the path of the login page; after the login, the person is redirected to the page `then`."""
    return "/login" if own_address(then) == "/" else f"/login?next={quote(then, safe='/')}"


def own_address(address: str) -> str:
    """Return the address of a page of this server unchanged, or "/" for any other address."""
    return address if _OWN.fullmatch(address) else "/"


def _page(notice: str, *, status: int, then: str = "/", below: str = "") -> HTMLResponse:
    notice_html = (
        f'<p class="notice" role="alert">{html.escape(sentence(notice))}</p>{below}' if notice else ""
    )
    hidden_field = "" if then == "/" else f'<input type="hidden" name="next" value="{html.escape(then)}">'
    page = _PAGE.replace("<!-- next -->", hidden_field).replace("<!-- notice -->", notice_html)
    return HTMLResponse(page, status_code=status)


_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log in - postroom</title>
<link rel="stylesheet" href="/static/postroom.css">
</head>
<body class="login">
<main>
<h1>postroom</h1>
<!-- notice -->
<form method="post" action="/login"><!-- next -->
<p><label for="token">The server's token</label></p>
<p><input id="token" name="token" type="password" autocomplete="current-password" required autofocus></p>
<p><button type="submit">Log in</button></p>
</form>
<p>The token is in the file <code>token</code> of the server's data folder.
<code>postroom open</code> logs you in without it.</p>
</main>
</body>
</html>
"""

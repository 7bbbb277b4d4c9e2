"""The progress of the operator's requests that take long."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts import progress
from postroom.services.administration import ProgressView

Endpoint = Callable[[Request], Awaitable[Response]]


class LongWork:
    """Tracks the progress of long requests, which commands poll."""

    def __init__(self) -> None:
        self._far: dict[str, tuple[str, int, int]] = {}

    def watched(self, path: str, endpoint: Endpoint) -> Endpoint:
        """Return an endpoint that records the progress of each request."""

        def note(doing: str, done: int = 0, total: int = 0) -> None:
            self._far[path] = doing, done, total

        async def answer(request: Request) -> Response:
            try:
                with progress.watched(note):
                    return await endpoint(request)
            finally:
                self._far.pop(path, None)

        return answer

    async def progress(self, of: str) -> ProgressView:
        """Return the progress of the current long request to the path `of`."""
        doing, done, total = self._far.get(of, ("", 0, 0))
        return {"doing": doing, "done": done, "total": total}

"""The operator's routes to what runs wait to be told."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.http_api.operators import operators, read_body


class QuestionService(Protocol):
    """What these routes ask of the server."""

    async def questions(self) -> Sequence[Mapping[str, object]]:
        """Return every open question."""
        ...

    async def answer(self, number: str, *, approved: bool, why: str) -> Mapping[str, object]:
        """Answer a question with yes or no.

        Raises:
            StaleDecision: it is not open, or not any more; no run is told anything.
        """
        ...


class _Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    number: str
    answer: Literal["yes", "no"]
    why: str = ""


def question_routes(desk: QuestionService) -> list[Route]:
    """Return the routes."""

    async def listed(_: Request) -> Response:
        return JSONResponse({"questions": [dict(one) for one in await desk.questions()]})

    async def answered(request: Request) -> Response:
        asked = await read_body(request, _Answer)
        done = await desk.answer(asked.number, approved=asked.answer == "yes", why=asked.why)
        return JSONResponse(dict(done))

    return [operators("/admin/questions", {"GET": listed, "POST": answered})]

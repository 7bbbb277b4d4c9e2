"""The operator's routes to what runs wait to be told."""

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.http_api.operators import operators, read_body
from postroom.services.questions import QuestionService


class _Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    number: str
    answer: Literal["yes", "no"]
    why: str = ""


def question_routes(questions: QuestionService) -> list[Route]:
    """Return the routes."""

    async def listed(_: Request) -> Response:
        return JSONResponse({"questions": [dict(one) for one in await questions.questions()]})

    async def answered(request: Request) -> Response:
        asked = await read_body(request, _Answer)
        done = await questions.answer(asked.number, approved=asked.answer == "yes", why=asked.why)
        return JSONResponse(dict(done))

    return [operators("/admin/questions", {"GET": listed, "POST": answered})]

"""The page of what runs wait to be told, and the form by which people answer."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.errors import InvalidArgument, StaleDecision, TooLarge
from postroom.web import links
from postroom.web.forms import read_form, remember_name
from postroom.web.page_context import PageContext, see
from postroom.web.serving import Endpoint

MOST_ANSWERS = 30
LONGEST_WHY = 2_000
LONGEST_NAME = 64
"""Characters."""
_WORDS = {"yes": True, "no": False}


class QuestionPages:
    """Shows questions and takes answers."""

    def __init__(self, working: PageContext) -> None:
        self._with = working

    def endpoints(self) -> Sequence[tuple[str, Endpoint]]:
        """Return the endpoints by their addresses."""
        return (("/p/{slug}/questions", self.questions),)

    async def questions(self, request: Request) -> Response:
        """Show what a project's agents wait to be told and what they were told lately; take an answer."""
        project = await self._with.project(request)
        if request.method == "POST":
            return await self._answered(request)
        questions = self._with.services.questions
        return self._with.html(
            request,
            "questions",
            project=project,
            asked=await questions.open_questions(project.slug),
            given=await questions.given_answers(project.slug, limit=MOST_ANSWERS),
            done=request.query_params.get("done", ""),
            longest_why=LONGEST_WHY,
            live=request.query_params.get("live") == "1",
        )

    async def _answered(self, request: Request) -> Response:
        project = await self._with.project(request)
        form = await read_form(request, self._with.services.visitors)
        word, why, by = form.text("answer"), form.text("why").strip(), form.text("by").strip()
        run_id, number = form.text("run"), form.text("number")
        if word not in _WORDS:
            raise InvalidArgument("the answer must be yes or no", value=word[:40], remedy="press a button")
        if len(why) > LONGEST_WHY or len(by) > LONGEST_NAME:
            raise TooLarge(
                f"a reason has at most {LONGEST_WHY} characters, a name {LONGEST_NAME}",
                value=max(len(why), len(by)),
                remedy="say it shorter; nothing was answered",
            )
        questions = self._with.services.questions
        try:
            await questions.decide(project.slug, run_id, number, approved=_WORDS[word], why=why, by=by)
        except StaleDecision as error:
            before = await questions.given_answer(project.slug, run_id, number)
            return self._with.html(
                request, "stale_answer", 409, project=project, before=before, message=error.message
            )
        answer = see(links.questions(project.slug, done=number))
        remember_name(request, answer, by)
        return answer

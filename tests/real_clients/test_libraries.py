"""LangChain, LiteLLM and the Open Responses compliance cases against our API, by the real packages."""

import json
import re
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.running import RunningServer
from e2e.test_gateway_server import KEY, configured, on_a_loop_of_its_own
from real_clients.home import PATIENCE, ROOT
from runtime.endpoint import END, SILENCE, FakeEndpoint, chunk, fragment, refusal

pytestmark = pytest.mark.timeout(4 * PATIENCE + 60)  # the libraries take long to load on a busy machine
HERE = Path(__file__).parent
PYTHON = ROOT / ".venv-clients" / "bin" / "python"
CASES = re.findall(r"^@case\ndef (\w+)", (HERE / "libraries.py").read_text(), re.MULTILINE)
USED = {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}


class Scripted(FakeEndpoint):
    """Echoes the last message, calls a tool when asked to, and answers in JSON if a format is requested."""

    async def _serve(self, reader: Any, writer: Any) -> None:
        self.answers = _Answers(self)  # type: ignore[assignment]  # made when it is asked for
        await super()._serve(reader, writer)


class _Answers:
    def __init__(self, endpoint: FakeEndpoint) -> None:
        self._endpoint = endpoint

    def pop(self, _: int) -> Any:
        asked = self._endpoint.bodies[-1]
        told = [one for one in asked["messages"] if one["role"] != "system"]
        system = "".join(one["content"] for one in asked["messages"] if one["role"] == "system")
        last = told[-1]["content"]
        words = last if isinstance(last, str) else last[0]["text"]
        if asked.get("response_format"):
            return [chunk("stop", content=json.dumps({"name": "Ada", "masts": 2})), END]
        if words == "use the tool" and asked.get("tools"):
            return [fragment(id="call_1", name="tide", args='{"port": "Hull"}'), chunk("tool_calls"), END]
        match words:
            case "never end":
                return [chunk(content="It begins, and it has more than 24 characters, "), SILENCE]
            case "how many hung up":
                return [chunk("stop", USED, content=str(self._endpoint.hang_ups)), END]
            case "say much":
                return [*(chunk(content=f"line {n}\n") for n in range(1_000)), chunk("stop", USED), END]
            case "be cut off":
                return [chunk("length", USED, content="It is cut")]
            case "refuse the key":
                return refusal(401, {"error": {"message": "wrong key", "code": "invalid_api_key"}})
            case "refuse the length":
                return refusal(400, {"error": {"message": "long", "code": "context_length_exceeded"}})
            case "refuse the content":
                return refusal(400, {"error": {"message": "no", "code": "content_filter"}})
        words = system if words == "tell your instructions" else words
        return [chunk(content=f"re: {words} "), chunk("stop", USED, content=f"({len(told)})"), END]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """The result of each case, in one run of the libraries: loading them takes longest."""

    @asynccontextmanager
    async def serving():
        async with Scripted().serving() as fake:
            yield fake

    home = tmp_path_factory.mktemp("libraries")
    with on_a_loop_of_its_own(serving) as (model, _), RunningServer(configured(home, model.url)) as server:
        done = subprocess.run(
            [str(PYTHON), str(HERE / "libraries.py"), f"{server.url}/v1", KEY],
            env={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1", "HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.skipif(not PYTHON.exists(), reason="the libraries are not installed: `make clients`")
@pytest.mark.parametrize("case", CASES)
def test_a_library_works_with_our_api(outcomes: dict[str, str | None], case: str) -> None:
    assert outcomes[case] is None, outcomes[case]


def test_each_case_is_in_the_tables_of_the_documents() -> None:
    page = (ROOT / "docs" / "openai-api.md").read_text()
    named = re.findall(r"`((?:langchain|litellm|open_responses)_\w+)`", page)
    assert sorted(named) == sorted(CASES)

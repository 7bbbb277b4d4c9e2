"""Conversations that continue: after a message that the model refuses, and beyond the model's window.

`POSTROOM_LONG_CHAT` is how many messages the long one has (150 by default); the full test is 500.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path

import httpx2
import pytest

from e2e.running import RunningServer
from e2e.strict_model import StrictModel
from e2e.test_gateway_server import KEY, PATIENCE, chat_page, configured, on_a_loop_of_its_own, shown
from postroom.gateway import wording

pytestmark = pytest.mark.long

MESSAGES = int(os.environ.get("POSTROOM_LONG_CHAT", "150"))


@pytest.fixture
def model() -> Iterator[StrictModel]:
    @asynccontextmanager
    async def serving():
        async with StrictModel().serving() as strict:
            yield strict

    with on_a_loop_of_its_own(serving) as (strict, _):
        yield strict


def say(server: RunningServer, text: str) -> str:
    """Send a message in the one session of these tests, and return the answer."""
    answer = httpx2.post(
        f"{server.url}/v1/chat/completions",
        verify=False,  # without reading the certificates of the system each time
        json={"model": "postroom", "messages": [{"role": "user", "content": text}], "conversation": "ada"},
        headers={"Authorization": f"Bearer {KEY}"},
        timeout=PATIENCE,
    )
    body = answer.json()
    return body["choices"][0]["message"]["content"] if "choices" in body else body["error"]["message"]


@contextmanager
def person(server: RunningServer) -> Iterator[Callable[[str, str], None]]:
    """Write on the chat page, each time until it shows an answer that begins so."""
    numbers = count(1)
    with chat_page(server) as browser:

        def write(text: str, answer: str) -> None:
            browser.post("/chat/messages", json={"id": f"message-{next(numbers)}-of-ada", "text": text})
            shown(browser, lambda entry: str(entry.get("text")).startswith(answer) and not entry["draft"])

        yield write


def test_a_failed_or_empty_turn_leaves_a_conversation_whose_roles_alternate(
    tmp_path: Path, model: StrictModel
) -> None:
    with RunningServer(configured(tmp_path, model.url)) as server:
        with person(server) as write:
            write("good morning", "re: good morning")
            write("HUSH now", wording.NO_ANSWER)
            write("are you there?", "re: are you there?")
            model.status = 401
            write("open the north shed", "The agent could not answer: ")
            write("/undo", "Removed the last exchange.")
            model.status = 0
            write("and now?", "re: and now?")
        seen = [one["content"] for one in model.bodies[-1]["messages"][1:]]
        assert seen[2:] == ["HUSH now\n\nare you there?", "re: are you there?", "and now?"]
        model.status = 502
        assert say(server, "which way to the light?").startswith("the model")
        model.status = 0
        assert say(server, "which way to the light?") == "re: which way to the light?"
        assert say(server, "HUSH again") == ""
        assert say(server, "and back?") == "re: and back?"
        seen = [one["content"] for one in model.bodies[-1]["messages"][1:]]
        assert seen[-3:] == [
            "which way to the light?",
            "re: which way to the light?",
            "HUSH again\n\nand back?",
        ]
    assert model.wrong_turns == 0


FACT = "FACT: the key of the north shed hangs behind the clock."


def told(number: int) -> str:
    """Return a message of some 130 tokens; the third message is worth remembering."""
    filler = " ".join(f"{number * place % 9973} boats" for place in range(1, 45))
    return f"message {number}: {FACT if number == 3 else ''} {filler}"


@pytest.mark.timeout(240)
def test_a_long_conversation_goes_on_in_a_small_window_and_survives_a_kill_while_it_is_summed_up(
    tmp_path: Path, model: StrictModel
) -> None:
    data = configured(tmp_path, model.url)
    server = RunningServer(data)
    number, killed = 1, 0

    async def kill() -> None:
        nonlocal killed
        if model.summaries == 4:
            killed += 1
            os.kill(server.pid, signal.SIGKILL)

    model.summing_up = kill
    with server:
        while number <= MESSAGES:
            try:
                assert say(server, told(number)).startswith(f"re: message {number}:")
            except httpx2.HTTPError:  # it was killed; what it was asked is answered when it is back
                server.kill()
                server.start()
            number += 1
        assert say(server, "which facts do you know?") == f"I know: {FACT}"
    assert killed == 1
    assert model.summaries > MESSAGES // 40
    assert model.refused == 1, "the window is learned once, also over the kill"
    asked = [body["messages"] for body in model.bodies]
    seen = "\n".join(one["content"] for messages in asked for one in messages)
    assert all(f"message {one}:" in seen for one in range(1, MESSAGES + 1))
    assert "message 1:" not in "\n".join(one["content"] for one in asked[-1])
    assert "Traceback" not in server.log()

"""Conversations that go on: behind a message that the model refuses, and beyond the model's window.

`POSTROOM_LONG_CHAT` is how many messages the long one has (150 by default); the full test is 500.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from e2e.running import RunningServer
from e2e.strict_model import StrictModel
from e2e.test_gateway_server import KEY, PATIENCE, chat_page, configured, on_a_loop_of_its_own, shown

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
    """Say something in the one session of these tests, and return the answer."""
    answer = httpx2.post(
        f"{server.url}/v1/chat/completions",
        verify=False,  # without reading the certificates of the system each time
        json={"model": "postroom", "messages": [{"role": "user", "content": text}], "user": "ada"},
        headers={"Authorization": f"Bearer {KEY}"},
        timeout=PATIENCE,
    )
    body = answer.json()
    return body["choices"][0]["message"]["content"] if "choices" in body else body["error"]["message"]


def test_a_message_that_the_model_refuses_is_set_aside_and_the_next_one_works(
    tmp_path: Path, model: StrictModel
) -> None:
    data = configured(tmp_path, model.url)
    with RunningServer(data) as server:
        assert say(server, "good morning") == "re: good morning"
        told = say(server, "POISON in a bottle")
        assert told.startswith("The model refused this and it is set aside (")
        assert "say it differently" in told
        assert say(server, "and now?") == "re: and now?"
        shown = [one["content"] for one in model.bodies[-1]["messages"][1:]]
        assert shown == ["good morning", "re: good morning", "and now?"]
    with RunningServer(data) as server:
        assert say(server, "still?") == "re: still?"


def test_what_the_credentials_prevent_is_not_set_aside(tmp_path: Path, model: StrictModel) -> None:
    with RunningServer(configured(tmp_path, model.url)) as server:
        model.status = 401
        told = say(server, "open the north shed")
        assert told.startswith("The agent could not answer: ")
        assert "tell who runs it" in told
        model.status = 0
        assert say(server, "and now?") == "re: and now?"
        shown = [one["content"] for one in model.bodies[-1]["messages"][1:]]
        assert shown == ["open the north shed", "and now?"]


FACT = "FACT: the key of the north shed hangs behind the clock."


def told(number: int) -> str:
    """Return a message of some 130 tokens; the third one is worth remembering."""
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


def test_a_person_has_the_conversation_compacted_and_undoes_what_was_summed_up(
    tmp_path: Path, model: StrictModel
) -> None:
    with RunningServer(configured(tmp_path, model.url)) as server, chat_page(server) as browser:

        def write(number: int, text: str) -> None:
            browser.post("/chat/messages", json={"id": f"message-{number}-of-ada", "text": text})

        def answered(text: str) -> None:
            shown(browser, lambda entry: str(entry.get("text")).startswith(text) and not entry["draft"])

        write(1, "/compact")
        answered("There is nothing to compact yet.")
        for number in range(2, 8):
            write(number, told(number))
            answered(f"re: message {number}:")
        write(8, "/compact")
        answered("Compacted: a summary stands for ")
        write(9, "which facts do you know?")
        answered(f"I know: {FACT}")
        assert "message 3:" not in str(model.bodies[-1]["messages"])
        write(10, "/search hangs behind")
        answered("untitled: ")
        write(11, "/undo 7")
        answered("Forgotten: 7")
        write(12, "what is left?")
        answered("re: what is left?")
        assert FACT not in str(model.bodies[-1]["messages"])

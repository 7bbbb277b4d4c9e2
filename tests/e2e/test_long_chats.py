"""Conversations that go on: behind a message that the model refuses, and beyond the model's window."""

from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from e2e.running import RunningServer
from e2e.strict_model import StrictModel
from e2e.test_gateway_server import KEY, PATIENCE, configured, on_a_loop_of_its_own


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

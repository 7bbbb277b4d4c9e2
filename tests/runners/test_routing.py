"""The executor that runs an agent: chosen by the kind of its runner, at each run."""

from typing import Any

import pytest

from dispatch_room import Deaf, done
from postroom.app.agent_supervisor import ExecutorsByRunner
from postroom.contracts.activation import Recovery, RunActivation
from postroom.contracts.errors import InvalidRunner, RunnerNotFound
from postroom.contracts.runners import AnyRunner, HttpRunner, ModelRunner, Runner, RunnerKind
from postroom.dispatch.routing import ExecutorsByThread

PROGRAM = Runner(argv=("x",), cwd="/work")
MODEL = ModelRunner(base_url="http://127.0.0.1/v1", model="m")
HTTP = HttpRunner(url="https://a/", secret_env="S")


class Known:
    """Fake runners, for tests: set by the test for each agent."""

    def __init__(self) -> None:
        self.of: dict[str, AnyRunner] = {"Ada": PROGRAM, "Bo": MODEL}

    async def runner_of(self, agent_id: str, agent: object = None) -> AnyRunner | None:
        return self.of.get(agent_id)


class Named(Deaf):
    """A fake executor, for tests, that names itself and accepts commands for its own ids."""

    def __init__(self, name: str, recovers: Recovery, *ids: str) -> None:
        super().__init__()
        self.name, self.recovers, self.ids = name, recovers, ids
        self.asked: list[str] = []

    async def execute(self, activation, sink):
        return done(activation, f"{self.name} {activation.recovery.value}")

    def recovery(self, activation):
        return self.recovers

    def _has(self, what: str, id: str) -> bool:
        self.asked.append(what)
        return id in self.ids

    def cancel(self, id):
        return self._has("cancel", id)

    async def cancel_and_wait_by_thread(self, thread_id):
        return self._has("wait", thread_id)

    def send_decision(self, id, tool_call_id, resume):
        return self._has("decision", id)

    def send_messages(self, id, messages):
        return self._has("messages", id)

    def wake_pending_boundary(self, id):
        return self._has("wake", id)


@pytest.fixture
def known() -> Known:
    return Known()


@pytest.fixture
def several(known: Known) -> ExecutorsByRunner:
    return ExecutorsByRunner(
        known,
        {
            RunnerKind.COMMAND: Named("command", Recovery.RESTART, "t1"),
            RunnerKind.MODEL: Named("model", Recovery.RESUME, "t2"),
        },
    )


async def said(several: Any, agent_id: str | None, recovery: Recovery = Recovery.START) -> str:
    activation = RunActivation(thread_id="t", agent_id=agent_id, recovery=recovery)
    return (await several.run(activation.hinted(run_id="r"), None)).response


async def test_each_run_goes_to_the_executor_of_its_kind(several: ExecutorsByRunner, known: Known) -> None:
    assert [await said(several, name) for name in ("Ada", "Bo")] == ["command start", "model start"]
    known.of["Ada"] = MODEL
    assert await said(several, "Ada") == "model start"


async def test_a_run_that_was_cut_off_begins_as_its_own_kind_says(several: ExecutorsByRunner) -> None:
    activation = RunActivation(thread_id="t", agent_id="Ada")
    told = several.recovery(activation)
    assert [await said(several, name, told) for name in ("Ada", "Bo")] == ["command restart", "model resume"]


async def test_an_agent_without_a_runner_and_a_kind_that_nothing_runs_are_refused(
    several: ExecutorsByRunner, known: Known
) -> None:
    with pytest.raises(RunnerNotFound):
        await said(several, "Cy")
    with pytest.raises(RunnerNotFound):
        await said(several, None)
    known.of["Cy"] = HTTP
    with pytest.raises(InvalidRunner, match="not support runners of the kind 'http'") as caught:
        await said(several, "Cy")
    assert caught.value.remedy == "supported kinds: command, model"
    assert not caught.value.retryable
    acp = Runner(argv=("x",), cwd="/work", kind=RunnerKind.ACP)
    with pytest.raises(InvalidRunner, match="'acp'"):
        several.check(acp)
    several.check(PROGRAM)


async def test_what_comes_for_a_run_finds_whichever_runs_it(several: ExecutorsByRunner) -> None:
    for id, found in (("t1", True), ("t2", True), ("t3", False)):
        assert several.cancel(id) is found
        assert await several.cancel_and_wait_by_thread(id) is found
        assert several.send_decision(id, "call", None) is found  # type: ignore[arg-type]
        assert several.send_messages(id, []) is found
        assert several.wake_pending_boundary(id) is found


async def test_by_thread_the_name_decides_and_the_rest_is_alike() -> None:
    one, other = Named("one", Recovery.RESTART, "a:1"), Named("other", Recovery.RESUME, "b:1")
    routes = ExecutorsByThread({"a:": one})
    routes.add("b:", other)
    activation = RunActivation(thread_id="b:1", recovery=routes.recovery(RunActivation(thread_id="b:1")))
    assert (await routes.run(activation.hinted(run_id="r"), None)).response == "other resume"
    assert routes.cancel("b:1")
    assert await routes.cancel_and_wait_by_thread("b:1")
    assert not routes.commits_steps("a:1")

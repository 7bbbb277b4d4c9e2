"""Files that a model writes: sent after its answer, each once, within the limits."""

from collections.abc import Callable
from typing import Any

from fake_channel import ALL
from gateway_room import CONFIG, all_answered, tried
from postroom.contracts.errors import StoreUnavailable
from postroom.contracts.executor import ExecutorAround
from postroom.contracts.inference import InferenceResult
from postroom.contracts.messages import Role, ToolCall
from postroom.contracts.records import replace
from postroom.gateway.events import FILES
from postroom.runtime import AgentRuntime, AgentSpec, FixedResolver, ResolvedAgent, ScriptedModel
from postroom.runtime.files import SendFileTool
from postroom.stores.chats.files import FileStore
from runtime.room import calls

TAKES_FILES = replace(ALL, media=FILES)


def sends(name: str, text: str, id: str = "c1") -> Any:
    return ToolCall(id=id, name="send_file", arguments={"name": name, "text": text})


def an_agent(clock: Any, *script: Any) -> tuple[AgentRuntime, ScriptedModel]:
    """A runtime as chats have it, with a model that says the script."""
    model = ScriptedModel(script)
    spec = AgentSpec(model="m", commits_calls=True)
    agent = ResolvedAgent(spec=spec, model=model, tools=(SendFileTool(),))
    return AgentRuntime(FixedResolver(agent), clock=clock, timer=clock), model


def answers(model: ScriptedModel) -> list[str]:
    """The results of its calls that the model read in its last request."""
    return [one.text() for one in model.requests[-1].messages if one.role is Role.TOOL]


class Dies(ExecutorAround):
    """The process dies when a run commits its first execution with files left, after `at` such commits."""

    def __init__(self, within: Any, store: FileStore, at: int) -> None:
        super().__init__(within)
        self._store, self._at = store, at
        self.read: list[int] = []
        """The executions that began."""
        self.made: list[str] = []
        """The files that were left, once for each call."""

    def began(self, runs: int) -> Callable[[], bool]:
        return lambda: len(self.read) >= runs

    async def run(self, activation, sink):
        self.read.append(activation.attempt)
        files, coordinator = activation.control.files, activation.control.coordinator
        leave, left, ids = files.leave_text, self._at, (activation.thread_id, [activation.run_id])

        async def noted(name, text):
            self.made.append(name)
            return await leave(name, text)

        class Falling:
            async def commit(_, *given, **more):
                nonlocal left
                if activation.attempt == 1 and await self._store.files(*ids):
                    if left == 0:
                        raise StoreUnavailable("killed")
                    left -= 1
                return await coordinator.commit(*given, **more)

        files.leave_text = noted
        control = replace(activation.control, coordinator=Falling())
        return await self._within.run(replace(activation, control=control), sink)


async def test_a_file_that_a_model_writes_comes_behind_its_answer(room) -> None:
    agent, model = an_agent(
        room.clock,
        calls(sends("a/table.csv", "a,b\n1,2\n", "c1"), sends("notes.md", "first", "c2")),
        calls(sends("notes.md", "gr\u00fcn", "c3")),
        InferenceResult.text("here they are"),
    )
    gateway, channel = await room.open(agent, capabilities=TAKES_FILES)
    await channel.say("a table, please")
    await all_answered(room, gateway, 1)
    sent = [(one.name, one.kind.value, one.mime, content) for one, content in channel.sent_files]
    assert sent == [
        ("table.csv", "document", "text/csv", b"a,b\n1,2\n"),
        ("notes.md", "document", "text/markdown", "gr\u00fcn".encode()),
    ]
    assert channel.texts() == ["here they are"]
    assert answers(model)[0] == 'The file "table.csv" (text/csv, 8 bytes) will be sent after your answer.'


async def test_a_process_that_dies_between_the_call_and_the_end_sends_the_file_once(room) -> None:
    before_answers, before_end = (0, 4), (1, 2)
    for at, made in (before_answers, before_end):
        runtime, _ = an_agent(
            room.clock,
            calls(sends("notes.txt", "words"), sends("more.txt", "words", "c2")),
            InferenceResult.text("here"),
            InferenceResult.text("here"),
        )
        agent = Dies(runtime, room.stores.files, at)
        gateway, channel = await room.open(agent, capabilities=TAKES_FILES)
        await channel.say("go")
        await tried(room, agent, 2)
        await all_answered(room, gateway, at + 1)
        assert (agent.read, len(agent.made)) == ([1, 2], made)
        assert [one.name for one, _ in channel.sent_files] == ["notes.txt", "more.txt"]
        assert channel.texts() == ["here"]
        await room.close()


async def test_what_cannot_be_sent_is_refused_in_a_sentence_that_the_model_reads(room) -> None:
    agent, model = an_agent(
        room.clock,
        calls(
            *[sends(name, "words", f"n{n}") for n, name in enumerate(("", "../..", "docs/", "\u202e\0"))],
            sends("empty.txt", "", "e"),
            sends("long.txt", "x" * 51, "l"),
            sends("short.html", "<html>", "h"),
        ),
        calls(*[sends(f"{n}.txt", "words", f"f{n}") for n in range(21)]),
        calls(sends("0.txt", "again", "again"), sends("one-more.txt", "words", "more")),
    )
    config = replace(CONFIG, max_media_bytes=50)
    gateway, channel = await room.open(agent, config=config, capabilities=TAKES_FILES)
    await channel.say("go")
    await all_answered(room, gateway, 1)
    told = answers(model)
    assert all("the file's name cannot be used; use a name such as notes.txt" in one for one in told[:4])
    assert "the file is empty" in told[4]
    assert "the file has 51 bytes; the limit is 50" in told[5]
    refused = [one for one in told[7:] if "this run has already sent 20 files, the maximum" in one]
    assert len(refused) == 3
    assert len(channel.sent_files) == 20
    assert (b"again" in [content for _, content in channel.sent_files]) == ("error" not in told[-2])
    assert all("error" not in one for one in (told[6], told[7]))


async def test_a_chat_that_takes_no_files_has_no_tool_to_send_them(room) -> None:
    agent, model = an_agent(room.clock, calls(sends("notes.txt", "words")))
    gateway, channel = await room.open(agent)
    await channel.say("go")
    await all_answered(room, gateway, 1)
    assert [request.tools for request in model.requests] == [(), ()]
    assert "there is no tool 'send_file'" in answers(model)[0]
    assert channel.sent_files == []

"""The scenarios that are tried with every client. A scenario fails, or returns the text of the table's cell next to `yes`."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from postroom.mail.operations import OPERATIONS
from postroom.mcp_server.profiles import CORE
from real_clients.asked import Asked, CallTool, Say, Step, in_turn
from real_clients.bench import Bench
from real_clients.home import PATIENCE
from real_clients.settings import read, without_ours
from real_clients.terminal import at_a_terminal
from real_clients.tokens import tokens_of

Scenario = Callable[[Bench], str]
MAX_END = 1.0
"""Seconds; a hook that waits for mail would take 25 and more."""
TURNS = 5
"""How many turns with postroom may be later, because the machine has other work; the quickest turn counts."""
MAX_STEPS = 200
"""How many requests a run may make before what it waits for must have come."""


def configuration_accepted(bench: Bench) -> str:
    """The client lists postroom among its servers."""
    bench.set_up()
    told = bench.home.must(*bench.client.servers())
    assert bench.client.accepts(told.text), bench.tell(told)
    return ""


def tools_offered(bench: Bench) -> str:
    """The client's request to its model contains postroom's tools with their descriptions. The note gives their number and size."""
    search = CallTool("tool_search", {"query": "postroom", "limit": 100})

    def script(asked: Asked) -> Step:
        has_to_search = asked.tool("tool_search") and not asked.ours and not asked.returned
        return search if has_to_search else Say("Many.")

    said = []
    for profile, names in (("core", CORE), ("full", OPERATIONS)):
        bench.set_up("--tools", profile)
        done = bench.turn("Which tools are there?", script=script)
        asked = bench.model.conversation[-1]
        assert asked.ours == tuple(sorted(names)), bench.tell(done)
        offered = [tool for name in names if (tool := asked.tool(name)) is not None]
        for name, tool in zip(names, offered, strict=True):
            assert OPERATIONS[name].description in tool.description, tool
            assert set(tool.schema["properties"]) >= set(OPERATIONS[name].command.__struct_fields__), tool
        said.append(f"`{profile}`: {len(offered)} tools, about {round(tokens_of(offered), -2):,} tokens")
    return "; ".join(said) + ("; found by its search" if asked.returned else "")


def tools_in_the_first_request(bench: Bench) -> str:
    """The first request of a session contains the `core` tools, so the model can use them without a search."""
    bench.set_up("--tools", "core")
    done = bench.turn("Which tools are there?", Say("Many."))
    assert bench.model.conversation[0].ours == tuple(sorted(CORE)), f"tools are deferred: {bench.tell(done)}"
    return ""


def ends_with_its_answer(bench: Bench) -> str:
    """After its answer, a turn without a person ends at most 1 s later than the same turn without postroom."""

    def seconds_to_the_end(*flags: str) -> float:
        asked: list[float] = []

        def script(_asked: Asked) -> Step:
            asked.append(time.monotonic())
            return Say("Good night.")

        bench.turn("Good evening.", script=script, flags=flags)
        return time.monotonic() - asked[-1]

    without = min(seconds_to_the_end() for _ in range(2))
    bench.set_up(*bench.client.waking)
    bench.team()
    bench.as_agent("Bo")
    late: list[float] = []
    while len(late) < TURNS and min(late, default=MAX_END) >= MAX_END:
        late.append(seconds_to_the_end(*bench.trusted) - without)
    print(
        f"{bench.client.name} ends {min(late):.2f} s later than without postroom, which takes {without:.2f} s"
    )
    assert min(late) < MAX_END, f"it ended {late} s later than without postroom, which takes {without:.1f} s"
    return ""


def session_resumed(bench: Bench) -> str:
    """A second turn resumes the session of the first turn, and the conversation of the second turn contains the first turn."""
    bench.set_up()
    first = bench.turn("The boat is called Albatross.", Say("I know it now."))
    session = bench.client.session(first, bench.home)
    if bench.client.resuming:
        return _resumed_at_a_terminal(bench, (*bench.client.resuming, session))
    second = bench.turn("What is it called?", Say("Albatross."), session=session)
    assert bench.client.session(second, bench.home) == session
    asked = bench.model.conversation[-1].text
    for said in ("The boat is called Albatross.", "I know it now.", "What is it called?"):
        assert said in asked, bench.tell(second)
    assert bench.client.answer(second) == "Albatross."
    return ""


def _resumed_at_a_terminal(bench: Bench, words: Sequence[str]) -> str:
    """Go on with the session as a person at a terminal does; return how."""
    bench.client.person(bench.home)
    bench.model.script = lambda _asked: Say("Albatross.")
    with at_a_terminal(bench.home, words) as terminal:
        terminal.type("What is it called?", behind="Albatross")
        asked = bench.model.wait_for(lambda one: "What is it called?" in one.new_text, again=terminal.enter)
    for said in ("The boat is called Albatross.", "I know it now."):
        assert said in asked.text, f"{bench.model.story()}\n{terminal}"
    return f"at a terminal, by `{' '.join(bench.client.resuming)}`"


def tool_changes(bench: Bench) -> str:
    """In a turn without a person, the client calls tools that change something, and the change is made. The note names the necessary option."""
    bench.set_up()
    bench.team()
    note = {"sender_name": "Bo", "to": ["Ada"], "subject": "Tide", "body_md": "It turns at six."}
    call = CallTool("send_message", {"project_key": str(bench.home.project), **note})
    done = bench.turn("Tell Ada.", call, Say("She is told."), flags=bench.client.allowing)
    assert [one["subject"] for one in bench.inbox("Ada")] == ["Tide"], bench.tell(done)
    return " ".join(bench.client.allowing)


def welcomed_at_the_start(bench: Bench) -> str:
    """If a session has no agent yet, its first request to the model describes postroom and explains how to register."""
    bench.set_up()
    bench.team()
    done = bench.turn("Good morning.", Say("Good morning."), flags=bench.trusted)
    assert WELCOMED in bench.model.conversation[0].text, bench.tell(done)
    return ""


def mail_told_at_the_prompt(bench: Bench) -> str:
    """The first request of a turn lists the unread mail."""
    bench.set_up()
    bench.team()
    bench.as_agent("Bo")
    bench.send("Ada", "Bo", "Lights", "Please light them.")
    done = bench.turn("Good morning.", Say("Good morning."), Say("Later."), flags=bench.trusted)
    assert TOLD in bench.model.conversation[0].text, bench.tell(done)
    return ""


def mail_told_after_a_tool(bench: Bench) -> str:
    """Mail that arrives during a turn is in the request that follows the next tool call."""
    bench.set_up()
    bench.team()
    bench.as_agent("Bo")

    def script(asked: Asked) -> Step:
        if asked.returned:
            return Say("Read.")
        bench.send("Ada", "Bo", "Lights", "Please light them.")
        return CallTool("list_agents", {"project_key": str(bench.home.project)})

    done = bench.turn("Who is here?", script=script, flags=bench.trusted)
    assert TOLD not in bench.model.conversation[0].text, bench.tell(done)
    assert TOLD in bench.model.conversation[1].text, bench.tell(done)
    return ""


def turn_goes_on_for_mail(bench: Bench) -> str:
    """If mail arrives while the model writes its final answer, the turn continues with the mail."""
    bench.set_up()
    bench.team()
    bench.as_agent("Bo")

    def script(asked: Asked) -> Step:
        if "I am done." in asked.text:
            return Say("I have seen it.")
        bench.send("Ada", "Bo", "Lights", "Please light them.")
        return Say("I am done.")

    done = bench.turn("Finish.", script=script, flags=bench.trusted)
    assert len(bench.model.conversation) > 1, bench.tell(done)
    assert HELD in bench.model.conversation[1].text, bench.tell(done)
    assert bench.client.answer(done).endswith("I have seen it."), bench.tell(done)
    return ""


def reserved_edit_refused(bench: Bench) -> str:
    """The client's own tool can write a file that nobody has reserved. The tool cannot write a file that another agent has reserved, and the model learns the name of that agent."""
    bench.set_up()
    bench.team()
    bench.as_agent("Bo")
    bench.reserve("Ada", "held.txt")
    held, free = bench.home.project / "held.txt", bench.home.project / "free.txt"
    calls = [bench.client.edit(path, "Bo was here.\n") for path in (free, held)]
    done = bench.turn("Write both.", *calls, Say("So it is."), flags=bench.trusted)
    assert free.exists(), bench.tell(done)
    assert not held.exists(), bench.tell(done)
    assert "Ada" in bench.model.conversation[2].new_text, bench.tell(done)
    return ""


def released_at_the_end(bench: Bench) -> str:
    """The end of a session releases the reservations of that session, and no others."""
    bench.set_up()
    bench.team()
    bench.as_agent("Bo")
    bench.reserve("Bo", "elsewhere.txt")
    held: list[tuple[str, ...]] = []
    here = {"project_key": str(bench.home.project), "agent_name": "Bo", "exclusive": True}

    def script(asked: Asked) -> Step:
        if not asked.returned:
            return CallTool("file_reservation_paths", {**here, "paths": ["here.txt"]})
        held.append(bench.reserved("Bo"))
        return Say("It is mine.")

    done = bench.turn("Take the file.", script=script, flags=bench.trusted)
    assert held[0] == ("elsewhere.txt", "here.txt"), bench.tell(done)
    assert bench.await_release("Bo", "here.txt"), bench.tell(done)
    assert bench.reserved("Bo") == ("elsewhere.txt",)
    return ""


def undone_to_the_byte(bench: Bench) -> str:
    """`setup remove` restores each settings file of the client byte for byte."""
    before = bench.settings()
    bench.set_up()
    assert bench.settings() != before
    told = bench.home.postroom("setup", "remove", bench.client.setup)
    assert bench.settings() == before, told
    return ""


def undone_after_a_rewrite(bench: Bench) -> str:
    """If the client has rewritten its settings, `setup remove` removes postroom's part and keeps the rest as the client wrote it."""
    bench.set_up()
    mine = bench.settings()
    bench.home.must(*bench.client.rewriting(bench.home))
    written = bench.settings()
    assert written != mine, "the client wrote nothing"
    told = bench.home.postroom("setup", "remove", bench.client.setup)
    left = bench.settings()
    expected = {
        name: kept for name, text in written.items() if (kept := without_ours(read(name, text))) is not None
    }
    assert {name: read(name, text) for name, text in left.items()} == expected, told
    assert b"other" in b"".join(left.values())
    for name, text in left.items():
        assert _lines(text) <= _lines(written[name]), text
    return ""


def _lines(text: bytes) -> set[bytes]:
    return {line.rstrip(b",") for line in text.splitlines()}


def idle_session_woken(bench: Bench) -> str:
    """An idle session of a person at a terminal starts a turn for each message. The client needs no preparation except `setup`."""
    words = bench.client.person(bench.home)
    bench.set_up(*bench.client.waking)
    bench.team()
    bench.as_agent("Bo")
    bench.model.script = lambda _asked: Say("I have seen it.")
    with at_a_terminal(bench.home, words) as terminal:
        terminal.type("Good morning.", behind=bench.client.drawn)
        bench.model.wait_for(lambda one: "Good morning." in one.new_text and not one.is_aside)
        for turns in (1, 2):
            terminal.await_idle()
            bench.send("Ada", "Bo", "Quay", f"Message {turns}.")
            asked = bench.model.wait_for(
                lambda one, n=turns: not one.is_aside and one.text.count("I have seen it.") == n
            )
            assert "Ada" in asked.new_text, f"{bench.model.story()}\n{terminal}"
    return " ".join(bench.client.waking)


def woken_and_answers(bench: Bench) -> str:
    """Mail starts a run of the agent with the built-in recipe. The answer is the agent's last text, without the agent's earlier texts."""
    bench.set_up()
    bench.team()
    bench.employ("Bo")
    reading = CallTool("fetch_inbox", {"project_key": str(bench.home.project), "agent_name": "Bo"})
    bench.model.script = in_turn(reading, Say("It turns at six."))
    sent = bench.send("Ada", "Bo", "Tide", "When does the tide turn?")
    told = bench.answer(sent)
    assert told == "It turns at six.", f"{told}\n{bench.model.story()}"
    assert "When does the tide turn?" in bench.model.conversation[0].text
    # Cline puts our text into a JSON document of its own.
    read = "".join(bench.model.conversation[-1].returned).replace("\\", "")
    assert '"from":"Ada"' in read, bench.model.story()
    return ""


def session_of_a_thread_resumed(bench: Bench) -> str:
    """A second message of a thread continues the session of the first message. A message of another thread starts a new session."""
    bench.set_up()
    bench.team()
    bench.employ("Bo")
    bench.model.script = lambda asked: Say(f"Heard {asked.text.count('Boat')}.")
    first = bench.send("Ada", "Bo", "Boats", "Boat one.")
    bench.answer(first)
    bench.answer(bench.send("Ada", "Bo", "Boats", "Boat two.", thread_id=first["thread_id"]))
    resumed = bench.model.conversation[-1].text
    assert "Boat one." in resumed, bench.model.story()
    bench.answer(bench.send("Ada", "Bo", "Other boats", "Boat three."))
    fresh = bench.model.conversation[-1].text
    assert "Boat three." in fresh, bench.model.story()
    assert "Boat one." not in fresh, bench.model.story()
    return ""


def question_answered(bench: Bench) -> str:
    """A run asks a person with the tool `ask_person` and waits. After the person's answer, the run continues and sends its result."""
    bench.set_up()
    bench.team()
    bench.employ("Bo")
    here = {"project_key": str(bench.home.project), "agent_name": "Bo", "question": "Shall I dig?"}

    def script(asked: Asked) -> Step:
        if "The answer is yes." in asked.text:
            return Say("It is dug.")
        if "Shall I dig?" in asked.text:
            return Say("I have asked.")
        return CallTool("ask_person", here)  # who asks, and in which run, the token of the run says

    bench.model.script = script
    sent = bench.send("Ada", "Bo", "Quay", "Dig, if you may.")
    told = bench.answer(sent)
    assert "Shall I dig?" in told, f"{told}\n{bench.model.story()}"
    [question] = bench.home.postroom("questions", "list")["questions"]
    bench.home.postroom("questions", "answer", question["number"], "yes")
    told = bench.answer(sent, number=2)
    assert told == "It is dug.", f"{told}\n{bench.model.story()}"
    return ""


def steered(bench: Bench) -> str:
    """A message that arrives during a run of its thread is in the model's next request. The run answers both messages."""
    bench.set_up()
    bench.team()
    bench.employ("Bo")
    here = {"project_key": str(bench.home.project)}
    first, second = "Look at the quay.", "And count the gulls."
    news = {"sender_name": "Bo", "to": ["Cy"], "subject": "Gulls", "body_md": "There are four."}
    bench.call("register_agent", name="Cy", program="test", model="none")
    sent: list[Any] = []
    steps: list[str] = []

    def script(asked: Asked) -> Step:
        steps.append(asked.text)
        if "There are four." in asked.text or len(steps) > MAX_STEPS:
            return Say("One boat, and four gulls.")
        if second in asked.text:
            return CallTool("send_message", {**here, **news})
        if len(steps) == 1:
            sent.append(bench.send("Ada", "Bo", "Quay", second, thread_id="quay"))
        return CallTool("list_agents", here)

    bench.model.script = script
    sent.insert(0, bench.send("Ada", "Bo", "Quay", first, thread_id="quay"))
    bench.model.wait_for(lambda asked: second in asked.text)
    told = bench.answer(sent[-1])
    assert told == "One boat, and four gulls.", f"{told}\n{bench.model.story()}"
    [taken] = [text for text in steps if second in text and "There are four." not in text]
    assert (taken.count(first), taken.count(second)) == (1, 1), bench.model.story()
    assert [one["body_md"] for one in bench.inbox("Cy")] == ["There are four."], bench.model.story()
    assert len(bench.inbox("Ada")) == 1, bench.model.story()
    assert bench.call("fetch_inbox", agent_name="Bo", unread_only=True) == []
    return ""


def run_cancelled(bench: Bench) -> str:
    """An active run is cancelled. The program of the run ends, and no answer is sent."""
    bench.set_up()
    bench.team()
    bench.employ("Bo")
    over = threading.Event()

    def script(_asked: Asked) -> Step:
        over.wait(PATIENCE)
        return Say("Too late.")

    bench.model.script = script
    try:
        bench.send("Ada", "Bo", "Tide", "When does the tide turn?")
        bench.model.wait_for(lambda asked: "When does the tide turn?" in asked.text and not asked.is_aside)
        [run] = [one for one in bench.runs() if one["agent"] == "Bo"]
        bench.home.postroom("runs", "cancel", run["run_id"])
        bench.home.await_end_of(f"POSTROOM_RUN={run['run_id']}")
    finally:
        over.set()
    assert not [one for one in bench.inbox("Ada") if "Too late." in one["body_md"]]
    return ""


TOLD = 'newest from "Ada"'
"""The text in the line in which a hook announces mail."""
WELCOMED = "The tool start_session registers this session."
"""The text of a hook at the start of a session."""
HELD = 'addressed to "Bo"'
"""The text in the line with which a hook continues a turn."""
OF_A_PERSON: Mapping[str, Scenario] = {
    one.__name__: one
    for one in (
        configuration_accepted,
        tools_offered,
        tools_in_the_first_request,
        ends_with_its_answer,
        session_resumed,
        tool_changes,
        welcomed_at_the_start,
        mail_told_at_the_prompt,
        mail_told_after_a_tool,
        reserved_edit_refused,
        turn_goes_on_for_mail,
        released_at_the_end,
        idle_session_woken,
        undone_to_the_byte,
        undone_after_a_rewrite,
    )
}
"""The acts of a client whose sessions a person begins."""
OF_THE_SERVER: Mapping[str, Scenario] = {
    one.__name__: one
    for one in (
        woken_and_answers,
        session_of_a_thread_resumed,
        question_answered,
        steered,
        run_cancelled,
    )
}
"""The acts of an agent that the server runs."""
SCENARIOS: Mapping[str, Scenario] = {**OF_A_PERSON, **OF_THE_SERVER}

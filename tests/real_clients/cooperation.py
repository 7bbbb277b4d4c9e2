"""`make cooperate`: failures of teams of agents, played by two real clients, without and with postroom.

Ada is Claude Code and Bo is Gemini CLI. A script plays the model of each. It reads what its client tells it, and nothing
else. A failure is counted, so are the requests to the models and their tokens. `docs/internals/cooperation.md` shows them.
"""

import json
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from real_clients.asked import Asked, CallTool, Say, Step
from real_clients.clients import PROGRAMS
from real_clients.home import PATIENCE, PINS, ROOT, Home
from real_clients.model_server import ModelServer
from real_clients.scenarios import TOLD
from real_clients.tokens import tokens_in

PAGE: Final = ROOT / "docs" / "internals" / "cooperation.md"
TEAM: Final = {"anthropic": ("Ada", "claude"), "gemini": ("Bo", "gemini")}
"""The name and the client of each agent, by the wire format in which the client asks its model."""
LOOKS: Final = 5
"""How often a model without news looks again before it gives up."""
Script = Generator[Step, Asked, None]
"""The acts of one model: it yields a step for each request, and gets the next request."""


@dataclass(slots=True)
class Yard:
    """The project in which both agents work, and what they did there."""

    home: Home
    has_postroom: bool
    done: list[str] = field(default_factory=list)
    """The pieces of work that were made, in order."""
    meeting: threading.Barrier = field(default_factory=lambda: threading.Barrier(2))
    is_over: threading.Event = field(default_factory=threading.Event)
    """Set when Ada has finished."""

    def meet(self) -> None:
        """Wait until the other model is as far as this one."""
        self.meeting.wait(PATIENCE)

    def await_ada(self) -> None:
        assert self.is_over.wait(PATIENCE), "Ada does not come to her end"

    def write(self, name: str, file: str, text: str) -> CallTool:
        """Return the call with which an agent's client writes a whole file."""
        client = next(client for agent, client in TEAM.values() if agent == name)
        return PROGRAMS[client].edit(self.home.project / file, text)

    def read(self, name: str, file: str) -> CallTool:
        """Return the call with which an agent's client reads a file."""
        return CallTool(
            "Read" if name == "Ada" else "read_file", {"file_path": str(self.home.project / file)}
        )

    def shell(self, name: str, command: str) -> CallTool:
        """Return the call with which an agent's client runs a command."""
        return CallTool("Bash" if name == "Ada" else "run_shell_command", {"command": command})

    def ours(self, name: str, tool: str, **arguments: Any) -> CallTool:
        """Return a call of a tool of postroom as an agent."""
        acting = "sender_name" if tool == "send_message" else "agent_name"
        return CallTool(tool, {"project_key": str(self.home.project), acting: name, **arguments})

    def text(self, file: str) -> str:
        """Return the content of a file; empty if it does not exist."""
        path = self.home.project / file
        return path.read_text() if path.exists() else ""

    def add(self, title: str, **more: Any) -> int:
        """Add a task as a person's agent; return its number."""
        with self.home.server.line() as line:
            here = {"project_key": str(self.home.project), "agent_name": "Cy"}
            return int(line.tool("add_task", title=title, **here, **more)["id"])


def tasks(yard: Yard, name: str, work: Callable[[str], Iterator[Step]]) -> Script:
    """Claim tasks and do them until none is left, as the tools' descriptions say."""
    asked = yield yard.ours(name, "claim_task")
    while (task := claimed(asked)) is not None:
        number, epoch, title = task
        for step in work(title):
            asked = yield step
        asked = yield yard.ours(name, "done_task", task_id=number, epoch=epoch, output="OK")
        asked = yield yard.ours(name, "claim_task")
    yield Say("No task is left.")


def claimed(asked: Asked) -> tuple[int, int, str] | None:
    """Return number, epoch and title of the task in the answer of `claim_task`; None without a task."""
    text = asked.returned[-1].replace("\\", "")
    start = text.index('"task"')
    task = json.JSONDecoder().raw_decode(text[text.index(":", start) + 1 :].lstrip())[0]
    return task and (task["id"], task["epoch"], task["title"])


# --- the failures ---


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure that two agents run into.

    Attributes:
        source: The publication that describes it.
        counts: The thing that is counted.
        prepare: Writes files and adds tasks.
        scripts: Return the acts of Ada and of Bo.
        count: Returns how often it happened.
    """

    name: str
    source: str
    counts: str
    prevented_by: str
    prepare: Callable[[Yard], None]
    scripts: tuple[Callable[[Yard], Script], Callable[[Yard], Script]]
    count: Callable[[Yard], int]


WORKS: Final = ("lamps", "ropes", "signs", "steps")


def _prepare_works(yard: Yard) -> None:
    (yard.home.project / "TODO.md").write_text("".join(f"- {one}\n" for one in WORKS))
    if yard.has_postroom:
        for one in WORKS:
            yard.add(one)


def _works(name: str) -> Callable[[Yard], Script]:
    def script(yard: Yard) -> Script:
        def one(work: str) -> Iterator[Step]:
            yard.done.append(work)
            yield yard.write(name, f"{work}-by-{name}.txt", f"{work}\n")

        yield yard.read(name, "TODO.md")
        if yard.has_postroom:
            yield from tasks(yard, name, one)
            return
        while True:  # it takes the first piece of work that nobody has done
            open_works = [work for work in WORKS if not any(yard.home.project.glob(f"{work}-by-*"))]
            yard.meet()
            if not open_works:
                break
            yield from one(open_works[0])
            yard.meet()
        yield Say("All is done.")

    return script


def _ada_adds(yard: Yard) -> Script:
    yield yard.read("Ada", "quay.txt")
    yard.meet()
    yield yard.write("Ada", "quay.txt", "one boat\na lamp of Ada\n")
    yield Say("The lamp is there.")


def _bo_adds(yard: Yard) -> Script:
    """Write the file from an old reading. If the write is refused, read again and write again."""
    yield yard.read("Bo", "quay.txt")
    yard.meet()
    yard.await_ada()
    asked = yield yard.write("Bo", "quay.txt", "one boat\na rope of Bo\n")
    if "a rope of Bo" not in yard.text("quay.txt"):
        assert "a lamp of Ada" in asked.returned[-1], "the refusal shows the change"
        yield yard.read("Bo", "quay.txt")
        yield yard.write("Bo", "quay.txt", f"{yard.text('quay.txt')}a rope of Bo\n")
    yield Say("The rope is there.")


def _prepare_quay(yard: Yard) -> None:
    (yard.home.project / "quay.txt").write_text("one boat\n")


def _lost_lines(yard: Yard) -> int:
    return sum(one not in yard.text("quay.txt") for one in ("a lamp of Ada", "a rope of Bo"))


def _prepare_names(yard: Yard) -> None:
    (yard.home.project / "api.txt").write_text("start_harbour\n")


def _ada_renames(yard: Yard) -> Script:
    yield yard.read("Ada", "api.txt")
    yard.meet()
    yield yard.write("Ada", "api.txt", "open_harbour\n")
    news = "start_harbour is called open_harbour now."
    if yard.has_postroom:
        yield yard.ours("Ada", "send_message", to=["Bo"], subject="Renamed", body_md=news)
    yield Say(news)


def _bo_uses(yard: Yard) -> Script:
    """Write a user of the function, by the newest name that it got."""
    yield yard.read("Bo", "api.txt")
    yard.meet()
    yard.await_ada()
    asked = yield yard.read("Bo", "quay.txt")
    name = "start_harbour"
    if TOLD in asked.text:
        asked = yield yard.ours("Bo", "fetch_inbox", include_bodies=True)
        name = "open_harbour" if "open_harbour" in asked.returned[-1] else name
    yield yard.write("Bo", "user.txt", f"{name}()\n")
    yield Say("It is used.")


def _ada_ends(yard: Yard) -> Script:
    yard.meet()
    if yard.has_postroom:
        yield from tasks(yard, "Ada", lambda work: iter([yard.write("Ada", f"{work}.txt", work)]))
    else:
        yield yard.write("Ada", "lamps.txt", "lamps")
        yield Say("All is done.")


def _bo_looks(yard: Yard) -> Script:
    """Look for work, until an answer says that there is none."""
    yard.meet()
    yard.await_ada()
    if yard.has_postroom:
        asked = yield yard.ours("Bo", "claim_task")
        assert "no task is ready" in asked.returned[-1]
    else:
        for _ in range(LOOKS):
            yard.done.append("look")
            yield yard.read("Bo", "TODO.md")
    yield Say("I have ended.")


def _prepare_lamps(yard: Yard) -> None:
    (yard.home.project / "TODO.md").write_text("- lamps\n")
    if yard.has_postroom:
        yard.add("lamps")


def _prepare_order(yard: Yard) -> None:
    (yard.home.project / "TODO.md").write_text("- api\n- manual, after api\n")
    if yard.has_postroom:
        yard.add("manual", depends_on=[yard.add("api")])


def _in_order(name: str) -> Callable[[Yard], Script]:
    def script(yard: Yard) -> Script:
        def one(work: str) -> Iterator[Step]:
            yield yard.write(name, f"{work}.txt", yard.text("api.txt") or work)
            yard.done.append(work)

        yield yard.read(name, "TODO.md")
        yard.meet()
        if yard.has_postroom:
            if name == "Bo":  # nothing is ready for him until Ada has finished
                asked = yield yard.ours(name, "claim_task", dry_run=True)
                assert claimed(asked) is None or not yard.done, "he sees only the task of Ada, or nothing"
                yard.await_ada()
            yield from tasks(yard, name, one)
            return
        if name == "Ada":
            yard.meet()  # Bo is quicker
        yield from one("api" if name == "Ada" else "manual")
        if name == "Bo":
            yard.meet()
        yield Say("It is written.")

    return script


def _too_early(yard: Yard) -> int:
    return int(yard.done.index("manual") < yard.done.index("api"))


def _prepare_check(yard: Yard) -> None:
    for name in ("lamps", "ropes"):
        (yard.home.project / f"check-{name}.sh").write_text(f"grep -q tested {name}.txt && touch {name}.ok\n")
        if yard.has_postroom:
            yard.add(name, acceptance=f"sh check-{name}.sh", assignee="Ada" if name == "lamps" else "Bo")


def _checked(name: str) -> Callable[[Yard], Script]:
    work = "lamps" if name == "Ada" else "ropes"

    def script(yard: Yard) -> Script:
        if not yard.has_postroom:
            yield yard.write(name, f"{work}.txt", "new\n")
            yield Say("It is done.")
            return
        asked = yield yard.ours(name, "claim_task")
        task = claimed(asked)
        assert task is not None
        yield yard.write(name, f"{work}.txt", "new\n")
        held = {"task_id": task[0], "epoch": task[1]}
        asked = yield yard.ours(name, "done_task", **held)
        if "`output` is empty" in asked.returned[-1].replace("\\", ""):
            yield yard.shell(name, f"echo tested >> {work}.txt; sh check-{work}.sh && echo OK")
            yield yard.ours(name, "done_task", **held, output="OK")
        yield Say("It is done.")

    return script


def _unchecked(yard: Yard) -> int:
    return sum(not yard.text(f"{one}.txt").endswith("tested\n") for one in ("lamps", "ropes"))


FAILURES: Final = {
    one.name: one
    for one in (
        Failure(
            "double work",
            "CooperBench (expectations)",
            "tasks, of 4, that both agents did",
            "`claim_task` gives each task to one agent",
            _prepare_works,
            (_works("Ada"), _works("Bo")),
            lambda yard: len(yard.done) - len(set(yard.done)),
        ),
        Failure(
            "lost edit",
            "CooperBench (commitments)",
            "edits, of 2, that are not in the file at the end",
            "the hook holds a write of a whole file that another agent has changed since it was read",
            _prepare_quay,
            (_ada_adds, _bo_adds),
            _lost_lines,
        ),
        Failure(
            "unread result",
            "CooperBench (communication)",
            "uses of the old name, of 1",
            "the hook announces mail at the next tool call",
            lambda yard: (_prepare_quay(yard), _prepare_names(yard))[0],
            (_ada_renames, _bo_uses),
            lambda yard: int("start_harbour" in yard.text("user.txt")),
        ),
        Failure(
            "unaware of the end",
            "MAST (termination)",
            "searches for work, of at most 5, after all work was done",
            "`claim_task` says that no task is ready",
            _prepare_lamps,
            (_ada_ends, _bo_looks),
            lambda yard: len(yard.done),
        ),
        Failure(
            "wrong order",
            "Co-Coder (dependencies)",
            "tasks, of 1, that were started before their input existed",
            "a task waits for the tasks that it depends on",
            _prepare_order,
            (_in_order("Ada"), _in_order("Bo")),
            _too_early,
        ),
        Failure(
            "no check",
            "MAST (verification)",
            "tasks, of 2, that were reported as done but fail their check",
            "`done_task` refuses a task without the output of its check",
            _prepare_check,
            (_checked("Ada"), _checked("Bo")),
            _unchecked,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The counts of one play."""

    failures: int
    requests: int
    tokens: int


def play(failure: Failure, *, has_postroom: bool) -> Outcome:
    """Run both clients into a failure, in a new home, and count."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ModelServer() as model,
        _yard(folder, model, has_postroom) as yard,
    ):
        failure.prepare(yard)
        scripts = {wire: script(yard) for wire, script in zip(TEAM, failure.scripts, strict=True)}
        locks = {wire: threading.Lock() for wire in TEAM}
        begun = set[str]()

        def answer(asked: Asked) -> Step:
            with locks[asked.wire]:
                if asked.wire in begun:
                    return next_step(scripts[asked.wire], asked)
                begun.add(asked.wire)
                return next(scripts[asked.wire])

        model.script = answer
        with ThreadPoolExecutor(len(TEAM)) as pool:
            working = [pool.submit(_turn, yard, wire) for wire in TEAM]
            for one in working:
                one.result()
        assert not model.failures, model.story()
        asked = model.conversation
        return Outcome(failure.count(yard), len(asked), tokens_in([json.dumps(one.body) for one in asked]))


def next_step(script: Script, asked: Asked) -> Step:
    """Return the next act of a script; after its end, the model reports the end."""
    try:
        return script.send(asked)
    except StopIteration:
        return Say("I have ended.")


@contextmanager
def _yard(folder: str, model: ModelServer, has_postroom: bool) -> Iterator[Yard]:
    home = Home(Path(folder) / "home", model)
    try:
        for _, client in TEAM.values():
            PROGRAMS[client].prepare(home)
        if not has_postroom:
            yield Yard(home, has_postroom)
            return
        with home.server as server:
            for _, client in TEAM.values():
                home.postroom("setup", client)
            with server.line() as line:
                line.crew(str(home.project), "Cy", *(name for name, _ in TEAM.values()))
            yield Yard(home, has_postroom)
    finally:
        home.end()


def _turn(yard: Yard, wire: str) -> None:
    name, program = TEAM[wire]
    client = PROGRAMS[program]
    allowing = [f"{word},Bash,Read,Write" if word.startswith("mcp__") else word for word in client.allowing]
    done = yard.home.run(*client.talk("Do your part of the work.", *allowing), agent=name)
    if name == "Ada":
        yard.is_over.set()
    assert done.code == 0, f"{done}\n{yard.home.model.story()}"


HEAD: Final = """\
# Failures of teams

Two real clients work in one project, without and with postroom. Ada is Claude Code {claude} and Bo is Gemini CLI {gemini}. Each row
is our shortest script of a kind of failure that [CooperBench](https://arxiv.org/abs/2601.13295), [MAST](https://arxiv.org/abs/2503.13657) or
[Co-Coder](https://arxiv.org/abs/2606.00953) describes in teams of agents. `make cooperate` plays each row once without and once with
postroom, and writes this page.

**What the table shows, and what it does not.** A script plays each model. The script decides by the texts that its client gets, and
follows the descriptions of the tools. So the table shows what postroom tells a client at the moment of a failure, and which calls
postroom refuses. The table does not show whether a real model obeys, forgets, or finds another way into the failure. Without postroom
the scripts run into the failure on purpose, so the column "without" is no measurement of a real team.

| failure | described by | counted | without | with | prevented by |
|---|---|---|---|---|---|
"""
COSTS: Final = """
## What it costs

The table counts the requests to both models, and the tokens of these requests with the tokenizer of OpenAI's models. A client sends
its own instructions
and tools, about {plain:,} tokens here, with each request, and providers cache most of it. postroom adds its tools and the text of its hooks.

| failure | requests without | with | tokens without | with |
|---|---|---|---|---|
"""
ITSELF: Final = """\

## CooperBench itself

`benchmarks/peers/cooperbench_agent.py` adds an agent to the package `cooperbench`: its Claude Code, with postroom in the place of
its own messages. On 30 November 2026 it was tried with `cooperbench` 0.0.29, without a key and without Docker. A folder replaced the
container, and a script the model. CooperBench's own code then set up postroom, started Claude Code with postroom's tools, and
collected the patch, and the message of one agent reached the other. Its containers, its data set, its evaluation and a real model
were not tried, so there is no score.
"""


def page(outcomes: dict[str, tuple[Outcome, Outcome]]) -> str:
    """Return the page for the outcomes without and with postroom, by the names of the failures."""
    rows = [HEAD.format(**{client: PINS[PROGRAMS[client].package] for _, client in TEAM.values()})]
    for name, (without, with_it) in outcomes.items():
        one = FAILURES[name]
        cells = (name, one.source, one.counts, without.failures, with_it.failures, one.prevented_by)
        rows.append(f"| {' | '.join(map(str, cells))} |\n")
    alone = [without for without, _ in outcomes.values()]
    plain = sum(one.tokens for one in alone) // sum(one.requests for one in alone)
    rows.append(COSTS.format(plain=round(plain, -2)))
    for name, (without, with_it) in outcomes.items():
        counts = f"{without.requests} | {with_it.requests} | {without.tokens:,} | {with_it.tokens:,}"
        rows.append(f"| {name} | {counts} |\n")
    return "".join([*rows, ITSELF])


if __name__ == "__main__":
    found = {}
    for name, failure in FAILURES.items():
        found[name] = play(failure, has_postroom=False), play(failure, has_postroom=True)
        print(name, *found[name], flush=True)
    PAGE.write_text(page(found))
    sys.exit(any(with_it.failures for _, with_it in found.values()))

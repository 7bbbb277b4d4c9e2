"""Clients that the server wakes: each message gets its own answer, in one conversation with the model."""

import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.running import soon
from real_clients.asked import Asked, CallTool, Returned, Said, Say, Script, Step
from real_clients.clients import CLIENTS, Client
from real_clients.home import PINS, PROXIES, Home
from real_clients.model_server import ModelServer
from real_clients.test_setup import trust_hooks

PATIENCE = 240.0
MESSAGES = 10
WORD: Final = re.compile(r"The word is (\w+)\.")
WOKEN: Final = "Mail has come for you"
PROGRAMS = ("claude", "codex", "gemini", "opencode", "copilot")
pytestmark = pytest.mark.timeout(PATIENCE + 60)


class Office:
    """Ada writes to Bo, whom the server runs by a real client."""

    def __init__(self, client: Client, home: Home, *, flags: tuple[str, ...] = ()) -> None:
        self.home = home
        client.prepare(home)
        passed = [word for name in (*client.pass_env, *PROXIES) for word in ("--pass-env", name)]
        self._declare = ("agents", "set-runner", "Bo", *client.runner, *passed, *flags)

    def open(self) -> None:
        for name in ("Ada", "Bo"):
            self.home.must("postroom", "agents", "register", name)
        self.home.must("postroom", *self._declare)

    def send(self, text: str, *, thread: str = "") -> None:
        on = ("--thread", thread) if thread else ()
        self.home.must("postroom", "mail", "send", "--as", "Ada", "--to", "Bo", "-s", "s", *on, text)

    def answers(self) -> list[dict[str, Any]]:
        """Return what came back, the oldest first."""
        found = self.home.postroom("mail", "inbox", "--as", "Ada", "--bodies")
        return sorted(found["messages"], key=lambda one: one["id"])

    def await_end(self) -> None:
        """Wait until no run is left: what it still says has then been mailed."""
        left = lambda: [run for run in self.home.postroom("runs", "list")["runs"] if not run["finished_at"]]  # noqa: E731
        soon(lambda: not left(), left)

    def await_answers(self, count: int) -> list[dict[str, Any]]:
        story = lambda: f"{self.answers()}\n{self.home.model.story()}\n{self.home.server.log()}"  # noqa: E731
        return soon(lambda: found if len(found := self.answers()) >= count else None, story)


def reads_and_answers(project: Path) -> Script:
    """Return a model that reads its inbox by our tool, and then says the word that it was woken with."""

    def script(asked: Asked) -> Step:
        words = WORD.findall(_since_woken(asked))
        is_read = any(isinstance(turn, Returned) for turn in asked.turns[_woken_at(asked) :])
        if not is_read:
            return CallTool("fetch_inbox", {"project_key": str(project), "agent_name": "Bo"})
        return Say(f"You said {words[0]}.")

    return script


def _woken_at(asked: Asked) -> int:
    """Return the position of the newest prompt from postroom in the conversation."""
    woken = [at for at, turn in enumerate(asked.turns) if isinstance(turn, Said) and WOKEN in turn.text]
    return woken[-1]


def _since_woken(asked: Asked) -> str:
    turn = asked.turns[_woken_at(asked)]
    assert isinstance(turn, Said)
    return turn.text


@pytest.mark.parametrize("is_git", [True, False], ids=["git", "no-git"])
@pytest.mark.parametrize("client", PROGRAMS)
def test_ten_messages_get_ten_right_answers(
    client: str, is_git: bool, tmp_path: Path, model: ModelServer, home: Home
) -> None:
    """With setup's entries in force: one conversation with the model each, and no text after the answer."""
    here = home if is_git else Home(tmp_path / "plain", model, is_git=False)
    office = Office(CLIENTS[client], here)
    model.script = reads_and_answers(here.project)
    with here.server:
        here.postroom("setup", client)
        if client == "codex":
            trust_hooks(here)
        office.open()
        for number in range(MESSAGES):
            office.send(f"The word is w{number}.", thread=f"t{number}")
        office.await_answers(MESSAGES)
        office.await_end()
        found = office.answers()
    told = sorted((one["thread_id"], one["body_md"]) for one in found)
    assert told == sorted((f"t{number}", f"You said w{number}.") for number in range(MESSAGES)), model.story()
    assert not model.failures
    asked = Counter(WORD.findall(_since_woken(one))[0] for one in model.conversation)
    assert asked == {f"w{number}": 2 for number in range(MESSAGES)}, model.story()
    returned = [one for asked in model.conversation for one in asked.returned]
    assert all("The word is w" in one for one in returned), returned


@pytest.mark.parametrize("per", ["thread", "agent"])
@pytest.mark.parametrize("client", PROGRAMS)
def test_a_message_resumes_the_session_of_its_thread_or_of_its_agent(
    client: str, per: str, model: ModelServer, home: Home
) -> None:
    office = Office(CLIENTS[client], home, flags=("--resume", "--session-per", per))
    model.script = reads_and_answers(home.project)
    with home.server:
        office.open()
        for count, (word, thread) in enumerate((("one", "a"), ("two", "b"), ("three", "a")), 1):
            office.send(f"The word is {word}.", thread=thread)
            office.await_answers(count)
    returned = [one for asked in model.conversation for one in asked.returned]
    assert returned, model.story()
    assert all("The word is" in one for one in returned), returned
    before = model.conversation[-2].text.split("The word is three.")[0]
    assert "The word is one." in before, model.story()
    assert "You said one." in before, model.story()
    assert ("The word is two." in before) == (per == "agent"), model.story()


@pytest.mark.parametrize("client", ["gemini", "gemini over ACP"])
def test_gemini_acts_by_its_run_where_nothing_is_set_up_and_no_folder_is_the_systems(
    client: str, model: ModelServer, home: Home
) -> None:
    """It skips settings of the system below a folder that others may write, as it does below one of a user."""
    home.path.chmod(0o775)
    office = Office(CLIENTS[client], home)
    before = _files_of(home.path / ".gemini")
    here = {"project_key": str(home.project), "agent_name": "Bo"}

    def script(asked: Asked) -> Step:
        match len([turn for turn in asked.turns if isinstance(turn, Returned)]):
            case 0:
                return CallTool("fetch_inbox", here)
            case 1:
                return CallTool("ask_person", {**here, "question": "Shall I dig?"})
        return Say("I have asked.")

    model.script = script
    with home.server:
        office.open()
        office.send("The word is one.")
        [told] = office.await_answers(1)
        [question] = home.postroom("questions", "list")["questions"]
    assert "Shall I dig?" in told["body_md"], model.story()
    assert question["question"] == "Shall I dig?"
    [inbox, _] = model.conversation[-1].returned
    assert "The word is one." in inbox
    assert _files_of(home.path / ".gemini").items() >= before.items()
    assert (home.path / ".gemini" / "tmp").is_dir()  # its sessions, beside those of its user
    assert not list(home.path.rglob("*.settings"))


def _files_of(folder: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "tmp" not in path.parts[-4:]
    }


def test_a_client_that_is_logged_out_says_what_helps(model: ModelServer, home: Home) -> None:
    client = CLIENTS["claude"]
    office = Office(client, home, flags=("--env", "ANTHROPIC_API_KEY="))
    with home.server:
        office.open()
        office.send("The word is one.")
        [told] = office.await_answers(1)
    version = PINS[client.package]
    for words in ("Bo could not process your message", f"Claude Code {version}", "claude auth login"):
        assert words in told["body_md"]

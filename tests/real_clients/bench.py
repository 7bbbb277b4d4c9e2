"""One client set up in one home, with a postroom server and a scripted model: the start of every scenario."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from machine import Bound
from real_clients.asked import Script, Step, in_turn
from real_clients.clients import Client, Opencode
from real_clients.home import PATIENCE, PROXIES, Done, Home, NotOver
from real_clients.model_server import ModelServer


@dataclass(frozen=True, slots=True)
class Bench:
    """The server runs; nothing is set up yet."""

    client: Client
    home: Home
    model: ModelServer

    def set_up(self, *flags: str) -> None:
        """Run `postroom setup` for the client, as its user would."""
        told = self.home.postroom("setup", self.client.setup, *flags)
        [one] = told["clients"]
        assert one["trial"]["state"] == "answered", told

    @property
    def trusted(self) -> tuple[str, ...]:
        """The flags of a turn that may do everything and runs our hooks."""
        return (*self.client.allowing, *self.client.trusting)

    def call(self, tool: str, **arguments: Any) -> Any:
        """Call a postroom tool in the project, as the server's operator."""
        with self.home.server.line() as line:
            return line.tool(tool, project_key=str(self.home.project), **arguments)

    def team(self) -> None:
        """Register Ada and Bo in the project."""
        with self.home.server.line() as line:
            line.tool("ensure_project", human_key=str(self.home.project))
        for name in ("Ada", "Bo"):
            self.call("register_agent", name=name, program="test", model="none")

    def as_agent(self, name: str) -> None:
        """Make the client's sessions act as an agent."""
        self.home.environment["POSTROOM_AGENT"] = name

    def send(self, sender: str, to: str, subject: str, text: str, **more: Any) -> Any:
        """Send a message from one agent to another."""
        words = {"sender_name": sender, "to": [to], "subject": subject, "body_md": text}
        return self.call("send_message", **words, **more)["deliveries"][0]["payload"]

    def inbox(self, name: str) -> list[Any]:
        """Return the messages of an agent, with their texts."""
        return list(self.call("fetch_inbox", agent_name=name, include_bodies=True))

    def reserve(self, name: str, path: str) -> None:
        """Reserve a file for an agent, in no session."""
        self.call("file_reservation_paths", agent_name=name, paths=[path], exclusive=True)

    def reserved(self, name: str) -> tuple[str, ...]:
        """Return what an agent has reserved."""
        found = self.call("list_file_reservations", agent_name=name)
        return tuple(sorted(one["path"] for one in found["reservations"]))

    def await_release(self, name: str, path: str) -> bool:
        """Return whether an agent has let go of a file, within a bound."""
        bound = Bound(PATIENCE)
        while path in self.reserved(name):
            if bound.has_passed():
                return False
            threading.Event().wait(0.2)
        return True

    def employ(self, name: str) -> None:
        """Make the server run an agent by the client's recipe, as shipped."""
        passed = [word for variable in (*self.client.pass_env, *PROXIES) for word in ("--pass-env", variable)]
        resume = () if self.client.name == "cline" else ("--resume",)
        self.home.postroom("agents", "set-runner", name, *self.client.runner, *resume, *passed)

    def runs(self) -> list[Any]:
        """Return the server's runs, those that ended too."""
        return list(self.home.postroom("runs", "list")["runs"])

    def answer(self, message: Any, *, number: int = 1) -> str:
        """Return the text of a message's answer, the first or a later one, when it has come.

        It fails when the message's run becomes a dead letter, and after a bound.
        """
        bound = Bound(PATIENCE)
        while not bound.has_passed():
            found = [one for one in self.inbox("Ada") if one["reply_to"] == message["id"]]
            if len(found) >= number:
                return str(sorted(found, key=lambda one: int(one["id"]))[number - 1]["body_md"])
            runs = [run for run in self.runs() if message["id"] in run["messages"]]
            if any(run["finished_at"] and run["state"] != "done" for run in runs):
                break
            threading.Event().wait(0.2)
        raise AssertionError(f"no answer to {message}: {self.runs()}\n{self.model.story()}")

    def settings(self) -> dict[str, bytes]:
        """Return the files of the home and the project that set-up may write to, by their names."""
        found = {name: self.home.path / name for name in self.client.files}
        return {name: path.read_bytes() for name, path in found.items() if path.exists()}

    def turn(
        self,
        prompt: str,
        *replies: Step | Sequence[Step],
        script: Script | None = None,
        session: str = "",
        flags: Sequence[str] = (),
    ) -> Done:
        """Make the client do one turn; the model gives these replies, one for each request."""
        self.model.script = script or in_turn(*replies)
        words, before = self.client.talk(prompt, *flags, session=session), len(self.model.asked)
        try:
            done = self.home.run(*words)
        except NotOver as hung:
            # Now and then opencode stands still by itself (its issues 35870 and 44901). Where the model was
            # told of no tool's result nothing was done yet, and its user would start it anew.
            new = self.model.asked[before:]
            if not isinstance(self.client, Opencode) or any(asked.returned for asked in new):
                raise
            print(f"opencode was started once more: {hung}")
            del self.model.asked[before:]
            self.model.script = script or in_turn(*replies)
            done = self.home.run(*words)
        assert done.code == 0, self.tell(done)
        assert not self.model.failures, self.tell(done)
        return done

    def runs_said(self) -> str:
        """Return the server's report on its runs, and the mail to Ada: both contain a client's own words."""
        asked = (("runs", "list"), ("mail", "inbox", "--as", "Ada", "--bodies"))
        try:
            return "\n".join(str(self.home.run("postroom", *words)) for words in asked)
        except (
            AssertionError
        ) as error:  # it did not come to its end: the failure that is told of stays the test's
            return str(error)

    def tell(self, done: Done) -> str:
        """Return what a failure must show: the client's own words and what the model was asked."""
        return f"{done}\n{self.model.story()}"

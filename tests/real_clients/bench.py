"""One client set up in one home, with a server of ours and a scripted model: what every scenario starts from."""

from collections.abc import Sequence
from dataclasses import dataclass

from real_clients.asked import Script, Step, in_turn
from real_clients.clients import Client
from real_clients.home import Done, Home
from real_clients.model_server import ModelServer


@dataclass(frozen=True, slots=True)
class Bench:
    """The server runs; nothing is set up yet."""

    client: Client
    home: Home
    model: ModelServer

    def set_up(self, *flags: str) -> None:
        """Run `postroom setup` for the client, as its user would."""
        told = self.home.postroom("setup", self.client.name, *flags)
        [one] = told["clients"]
        assert one["trial"]["state"] == "answered", told

    def turn(
        self,
        prompt: str,
        *replies: Step | Sequence[Step],
        script: Script | None = None,
        session: str = "",
        flags: Sequence[str] = (),
    ) -> Done:
        """Have the client do one turn; the model gives these replies, one a request."""
        self.model.script = script or in_turn(*replies)
        done = self.home.run(*self.client.talk(prompt, *flags, session=session))
        assert done.code == 0, self.tell(done)
        assert not self.model.failures, self.tell(done)
        return done

    def tell(self, done: Done) -> str:
        """Return what a failure must show: the client's own words and what the model was asked."""
        return f"{done}\n{self.model.story()}"

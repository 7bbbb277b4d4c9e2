"""A post room that was uninstalled without `setup remove`: what set-up wrote holds nobody up."""

import os
from pathlib import Path

import pytest

from real_clients.asked import Say
from real_clients.bench import Bench


@pytest.mark.parametrize("client", ["claude", "codex", "gemini", "opencode", "copilot"])
def test_a_client_edits_as_before_when_the_command_is_gone(bench: Bench) -> None:
    bench.set_up()
    home = bench.home
    folders = home.environment["PATH"].split(os.pathsep)
    home.environment["PATH"] = os.pathsep.join(one for one in folders if not Path(one, "postroom").exists())
    file = home.project / "new.txt"
    done = bench.turn("Write it.", bench.client.edit(file, "boats\n"), Say("Done."), flags=bench.trusted)
    assert file.exists(), bench.tell(done)
    assert file.read_text() == "boats\n"

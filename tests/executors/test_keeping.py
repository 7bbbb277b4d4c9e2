"""A server that was killed counts as gone when the small process beside it has ended its programs, and not before."""

import signal
import subprocess
import sys

import psutil
import pytest

from postroom.executors.processes.servers import is_gone, own_process

SERVER = """
import sys
from postroom.executors.processes.keeping import Keeper

keeper = Keeper()
keeper.begin("a-program")
print("ready", flush=True)
sys.stdin.read()
"""
PATIENCE = 60


@pytest.mark.skipif(sys.platform != "linux", reason="the process is there on Linux alone")
def test_a_killed_server_is_gone_once_its_programs_were_ended() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        about = {**own_process(), "pid": server.pid}
        assert not is_gone(about)
        (keeper,) = psutil.Process(server.pid).children()
        keeper.suspend()  # as on a machine that is too busy for it
        try:
            server.send_signal(signal.SIGKILL)
            server.wait(PATIENCE)
            assert not is_gone(about)
        finally:
            keeper.resume()
        psutil.wait_procs([keeper], timeout=PATIENCE)
    assert is_gone(about)

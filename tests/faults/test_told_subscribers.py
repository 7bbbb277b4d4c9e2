"""A server that is killed while it tells a subscriber of an event tells it once."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("telling_process.py")


def test_a_server_killed_at_any_statement_leaves_the_message_with_its_cursor_or_neither(
    tmp_path: Path,
) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.fspath, sys.path))}
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, timeout=300)
    *killed, last = json.loads(done.stdout)
    assert last == [False, True, 1, 1]
    assert len(killed) > 5, "the change has several statements"
    for was_killed, has_moved, messages, finally_there in killed:
        assert was_killed
        assert messages == has_moved, "one without the other"
        assert finally_there == 1
    assert {has_moved for _, has_moved, *_ in killed} <= {False, True}
    assert killed[0][1] is False

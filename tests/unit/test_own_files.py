"""The author of changes to the files of an open database."""

import threading
from contextlib import suppress
from pathlib import Path

from postroom.contracts.errors import WrongStore
from postroom.stores.sqlite.engine import OwnFiles
from postroom.testing import ManualClock


def change(path: Path, text: bytes) -> None:
    with path.open("r+b") as file:
        file.write(text)


def test_who_asks_while_a_checkpoint_writes_takes_it_for_no_other_program(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = tmp_path / "postroom.db"
    path.write_bytes(bytes(200))
    files, ours, asks = OwnFiles(path, clock), [], threading.Barrier(2)
    files.note()

    def ask() -> None:
        for number in range(100):
            asks.wait()
            with suppress(WrongStore):
                files.refuse_changed()
                ours.append(number)
            asks.wait()

    reader = threading.Thread(target=ask)
    reader.start()
    for number in range(100):
        with files.writing():
            change(path, b"%03d" % number)
            asks.wait()
            change(path, b"%03d!" % number)
        asks.wait()
    reader.join()
    files.close()
    assert ours == list(range(100))

"""The log that a killed process left: a damaged log is refused, a log that a power cut tore is not."""

import random
import shutil
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from postroom.contracts.errors import WrongStore
from postroom.stores.sqlite.connection import PAGE_SIZE, connect
from postroom.stores.sqlite.left_log import cut_damaged_log, refuse_damaged_log

COMMITS = 40
FLIPS = 200
HEADER, FRAME, PAGE = 32, 24, PAGE_SIZE
WRITER = """
import os, signal, sys
from pathlib import Path
from postroom.stores.sqlite.connection import connect
connection = connect(Path(sys.argv[1]))
connection.execute("PRAGMA wal_autocheckpoint = 0")
connection.execute("PRAGMA cache_size = 5")
for statement in sys.argv[2:]:
    connection.execute(statement)
os.kill(os.getpid(), signal.SIGKILL)
"""
TABLE = "CREATE TABLE IF NOT EXISTS kept (number INTEGER PRIMARY KEY, filling BLOB)"
BEGUN_ANEW = "PRAGMA wal_checkpoint(RESTART)"


def killed(database: Path, *statements: str) -> None:
    """Have a process run statements on a database and die."""
    subprocess.run([sys.executable, "-c", WRITER, str(database), *statements], check=False)


def commit(number: int) -> str:
    return f"INSERT INTO kept VALUES ({number}, zeroblob({number % 5} * 3000))"


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database whose log begins with the last commit and ends with frames that are already in the file."""
    database = tmp_path_factory.mktemp("left") / "left.db"
    before = [TABLE, *map(commit, range(2 * COMMITS)), BEGUN_ANEW, "DELETE FROM kept", BEGUN_ANEW]
    killed(database, *before, *map(commit, range(COMMITS)))
    return database


def log_of(database: Path) -> Path:
    return database.with_name(f"{database.name}-wal")


def copied(database: Path, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for file in (database, log_of(database)):
        shutil.copy(file, folder / file.name)
    return folder / database.name


def ends(log: bytes) -> list[int]:
    """Return where each transaction of the log ends."""
    salts, found = log[16:24], []
    for at in range(HEADER, len(log) - FRAME - PAGE + 1, FRAME + PAGE):
        if log[at + 8 : at + 16] != salts:
            break
        if struct.unpack(">I", log[at + 4 : at + 8])[0]:
            found.append(at + FRAME + PAGE)
    return found


def kept(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute("SELECT count(*) FROM kept").fetchone()[0])


def test_of_a_log_with_a_flipped_bit_nothing_is_lost_or_it_is_refused(left: Path, tmp_path: Path) -> None:
    log = log_of(left).read_bytes()
    *_, before_last, end = ends(log)
    assert len(ends(log)) == COMMITS
    assert len(log) > end, "frames of before lie behind"
    dice, refused = random.Random(15), 0
    for _ in range(FLIPS):
        place = dice.randrange(HEADER, len(log)) if dice.random() < 0.5 else dice.randrange(end)
        if dice.random() < 0.3:  # the small parts too
            place = dice.choice([dice.randrange(HEADER), _in_a_frame_header(dice, end)])
        database = copied(left, tmp_path / "flipped")
        damaged = bytearray(log)
        damaged[place] ^= 1 << dice.randrange(8)
        log_of(database).write_bytes(damaged)
        try:
            refuse_damaged_log(database)
        except WrongStore:
            refused += 1
            # A bit in these bytes makes a frame look like the end of its transaction, which the next frame belies.
            says_the_end = (place - HEADER) % (FRAME + PAGE) in range(4, 8)
            assert place < before_last or says_the_end
        else:
            lost = COMMITS - kept(database)
            assert lost <= (before_last <= place < end), f"{lost} are lost by byte {place}"
        assert log_of(left).read_bytes() == log
    assert refused > FLIPS / 4


def _in_a_frame_header(dice: random.Random, end: int) -> int:
    return HEADER + dice.randrange((end - HEADER) // (FRAME + PAGE)) * (FRAME + PAGE) + dice.randrange(FRAME)


def test_a_lost_sector_that_spans_two_frames_is_seen(left: Path, tmp_path: Path) -> None:
    database = copied(left, tmp_path)
    log = bytearray(log_of(database).read_bytes())
    begin = ends(log)[5] // PAGE * PAGE
    log[begin : begin + PAGE] = bytes(PAGE)
    log_of(database).write_bytes(log)
    with pytest.raises(WrongStore, match="damaged at byte"):
        refuse_damaged_log(database)
    assert log_of(database).read_bytes() == log, "nothing is changed by looking"


def test_a_log_that_a_power_cut_tore_is_not_refused(left: Path, tmp_path: Path) -> None:
    """Any of the sectors of the last transaction may be missing, and the file may be shorter."""
    log = log_of(left).read_bytes()
    *_, before_last, end = ends(log)
    dice = random.Random(4)
    for round_ in range(40):
        database = copied(left, tmp_path / "torn")
        torn = bytearray(log)
        for sector in range(before_last, end, 512):
            if dice.random() < 0.5:
                torn[sector : min(sector + 512, end)] = bytes(min(512, end - sector))
        log_of(database).write_bytes(torn if round_ % 2 else torn[: dice.randrange(before_last, end)])
        refuse_damaged_log(database)
        assert kept(database) >= COMMITS - 1


def test_what_a_killed_transaction_left_behind_the_next_one_is_no_damage(tmp_path: Path) -> None:
    """Without a checkpoint the log continues over it, with the same salts."""
    database = tmp_path / "left.db"
    killed(database, TABLE, commit(1))
    begun = [
        "BEGIN",
        "INSERT INTO kept VALUES (9, zeroblob(200000))",
        "UPDATE kept SET filling = zeroblob(9000)",
    ]
    killed(database, *begun)
    longer = log_of(database).stat().st_size
    killed(database, commit(2))
    assert log_of(database).stat().st_size == longer
    refuse_damaged_log(database)
    assert kept(database) == 2


@pytest.mark.parametrize("ended", [False, True])
def test_a_torn_transaction_before_the_rest_of_an_older_one_is_no_damage(ended: bool, tmp_path: Path) -> None:
    """The older and longer log was killed, or a power cut tore it although its end was written."""
    database = tmp_path / "left.db"
    killed(database, TABLE, commit(1))
    [*_, begin] = ends(log_of(database).read_bytes())
    filling = "INSERT INTO kept VALUES (9, zeroblob(200000))"
    killed(
        database, *([filling] if ended else ["BEGIN", filling, "UPDATE kept SET filling = zeroblob(9000)"])
    )
    _tear(log_of(database), begin)
    killed(database, commit(2))
    assert len(ends(log_of(database).read_bytes())) == 3 + ended, "the rest of the older one is still there"
    _tear(log_of(database), begin)
    refuse_damaged_log(database)
    assert kept(database) == 1


def _tear(log: Path, at: int) -> None:
    """Lose a sector of a frame."""
    with log.open("r+b") as file:
        file.seek(at + FRAME)
        file.write(b"lost" * 128)


def test_a_damaged_log_can_be_given_up_and_is_kept(left: Path, tmp_path: Path) -> None:
    assert cut_damaged_log(copied(left, tmp_path / "whole"), now=7) is None
    for place, held in ((ends(log_of(left).read_bytes())[9] + FRAME, 10), (17, 0)):
        database = copied(left, tmp_path / str(held))
        damaged = bytearray(log_of(database).read_bytes())
        damaged[place] ^= 4
        log_of(database).write_bytes(damaged)
        before = database.read_bytes()
        aside = cut_damaged_log(database, now=7)
        assert aside == database.with_name("left.db.damaged.7")
        assert (aside.read_bytes(), log_of(aside).read_bytes()) == (before, damaged)
        refuse_damaged_log(database)
        assert kept(database) == held


def test_there_may_be_no_log_or_an_empty_one(tmp_path: Path) -> None:
    database = tmp_path / "left.db"
    with closing(connect(database)) as connection:
        connection.execute(TABLE)
    refuse_damaged_log(database)
    log_of(database).touch()
    refuse_damaged_log(database)
    assert cut_damaged_log(database, now=1) is None

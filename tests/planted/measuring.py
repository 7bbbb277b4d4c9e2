"""python -m planted.measuring [--worlds 2000] [--count] [NAME...]: say after how many worlds each planted fault is found.

With `--count`, say in how many of the worlds it is found: the first of them is a matter of luck.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from planted.protocol import PLANTS, Plant

ROOT = Path(__file__).resolve().parents[2]


def found_after(
    plant: Plant | None, copy: Path, worlds: int, first: int = 0, *, counts: bool = False
) -> tuple[int, str]:
    """Plant a fault in the copy; return how many worlds it took to find it, and the finding; "" for none.

    With `counts`, run all of these worlds and return in how many of them the fault was found.

    Raises:
        RuntimeError: The worlds could not be run.
    """
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    if plant is not None:
        plant.put_into(copy)
    shutil.copytree(ROOT / "tests/simulation", copy.parent / "tests/simulation", dirs_exist_ok=True)
    environment = os.environ | {
        "PYTHONPATH": f"{copy.parent / 'tests'}:{copy}:{ROOT / 'tests'}",
        "PYTHONHASHSEED": "0",
    }
    environment["PYTHONPYCACHEPREFIX"] = str(copy.parent / "compiled")
    words = [
        sys.executable,
        "-m",
        "simulation",
        "--json",
        "--no-stories",
        "--seeds",
        f"{first}-{first + worlds - 1}",
        *(["--all"] if counts else []),
    ]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(done.stderr.strip()[-2_000:])
    told = json.loads(done.stdout)
    failed = told["failed"]
    return len(failed) if counts else told["worlds"], failed[0]["found"][0] if failed else ""


def main() -> int:
    """Print a line for each fault; return 1 if one of them is not found."""
    asked = argparse.ArgumentParser(prog="planted.measuring", description=__doc__)
    asked.add_argument("--worlds", type=int, default=2_000)
    asked.add_argument("--first", type=int, default=0, help="the first seed")
    asked.add_argument("--count", action="store_true", help="count the worlds that find a fault")
    asked.add_argument("names", nargs="*", help="parts of names; without them all faults")
    given = asked.parse_args()
    missed, of_all = 0, f" of {given.worlds}" if given.count else ""
    for plant in PLANTS:
        if given.names and not any(name in plant.name for name in given.names):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                worlds, finding = found_after(
                    plant, Path(folder) / "src", given.worlds, given.first, counts=given.count
                )
            except LookupError as error:
                worlds, finding = 0, ""
                print(error)
        missed += not finding
        print(
            f"{plant.name}: {f'{worlds}{of_all} worlds: {finding[:150]}' if finding else f'NOT FOUND in {worlds}'}",
            flush=True,
        )
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())

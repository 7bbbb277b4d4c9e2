"""make planted [OPTIONS="--map FILE"]: plant the single-line faults one by one; print which the tests find.

Each fault is put into a copy of the checkout. The test of `found.json`, which found the fault last time, runs first; if it
passes, `make test` runs there until the first failure. With a map, which is the data file of a run of the suite with
`--cov-context=test`, only the tests that execute the line run, and the fault counts as not executed if none does. A fault
whose line has gone from the source is counted apart: draw another line. `--write` writes `found.json` again.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from planted.lines import LINES
from planted.protocol import Plant

ROOT = Path(__file__).resolve().parents[2]
FOUND = Path(__file__).with_name("found.json")
"""The test that found each fault when it was tried last; empty if none did."""
MAX_NAMES = 400
"""For more tests than this, the command line names their files instead."""
MINUTES = 20


def tests_of(plant: Plant, data: Path) -> list[str]:
    """Return the tests that execute the line of a fault, according to a run of the suite under coverage."""
    import coverage  # not a requirement of the project: only a map needs it

    known = coverage.CoverageData(str(data))
    known.read()
    file, text, _ = plant.changes[0]
    source = (ROOT / "src/postroom" / file).read_text(encoding="utf-8")
    number = source[: source.index(text)].count("\n") + 1
    measured = next(one for one in known.measured_files() if one.endswith(f"/postroom/{file}"))
    contexts = known.contexts_by_lineno(measured).get(number, [])
    names = sorted({context.partition("|")[0] for context in contexts} - {""})
    return names if len(names) <= MAX_NAMES else sorted({name.partition("::")[0] for name in names})


def finding(plant: Plant, tests: list[str], copy: Path) -> str:
    """Return the first test that fails in a copy with the fault, or "" if none does.

    Raises:
        LookupError: The line of the fault is not in the source.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name, follow_symlinks=False)
    plant.put_into(copy / "src")
    lane = ["-m", "not nightly"]
    if not tests or len(tests) > 1:
        lane = ["-m", "not long and not nightly", "--ignore", "tests/real_clients", "--ignore", "tests/meta"]
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--tb",
        "no",
        "-n",
        "2",
        *lane,
        *tests,
    ]
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            words,
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60 * MINUTES,
        )
    except subprocess.TimeoutExpired:
        return f"the tests did not end in {MINUTES} minutes"
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (
        failed[0] if failed else done.stdout.strip().splitlines()[-1] if done.returncode not in (0, 5) else ""
    )


def main() -> int:
    """Print a line for each fault, and the share that was found."""
    asked = argparse.ArgumentParser(prog="planted.suite", description=__doc__)
    asked.add_argument("--map", type=Path, help="data file of a run of the suite with --cov-context=test")
    asked.add_argument("--write", action="store_true", help="write the test that found each fault")
    asked.add_argument("names", nargs="*", help="parts of names; without them all faults")
    given = asked.parse_args()
    count, known = Counter[str](), dict[str, str](json.loads(FOUND.read_text(encoding="utf-8")))
    for plant in LINES:
        if given.names and not any(name in plant.name for name in given.names):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                before = known.get(plant.name, "")
                found = finding(plant, [before], Path(folder) / "first") if before else ""
                tests = tests_of(plant, given.map) if given.map and not found else []
                if not found and (tests or not given.map):
                    found = finding(plant, tests, Path(folder) / "again")
                state = "found" if found else "not executed" if given.map and not tests else "NOT FOUND"
                known[plant.name] = found.removeprefix("FAILED ").partition(" - ")[0]
            except (LookupError, ValueError, StopIteration):
                found, state = "", "line gone"
        count[state] += 1
        print(f"{state:13}{plant.name}   {found}", flush=True)
    print(", ".join(f"{number} {state}" for state, number in count.items()))
    if given.write:
        table = {plant.name: known.get(plant.name, "") for plant in LINES}
        FOUND.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

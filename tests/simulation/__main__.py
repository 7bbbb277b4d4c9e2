"""python -m simulation [--seeds 200 | --seeds 100-299] [--seed N] [--json]: run worlds and report their faults."""

import argparse
import json
import os
import pickle
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if os.environ.get("PYTHONHASHSEED") != "0":  # texts in sets keep one order in every process
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]])

from simulation.plan import Plan, plan_of
from simulation.world import live, prepare, smallest

AT_ONCE = 400
"""Worlds of one process. Each leaves about 0.3 MB of memory, which is never freed."""
STORIES = Path(__file__).with_name("stories")
"""Plans that have shown a fault once, made smaller."""


def story(name: str) -> Plan:
    """Return a kept plan."""
    return Plan.decoded(json.loads((STORIES / f"{name}.json").read_text()))


def main() -> int:
    """Run the requested worlds; return 1 if one of them breaks a rule."""
    asked = argparse.ArgumentParser(prog="simulation", description=__doc__)
    asked.add_argument("--seeds", default="200", help="a number of seeds from 0 on, or a range: 100-299")
    asked.add_argument("--seed", type=int, help="replay one seed and print its trace")
    asked.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    asked.add_argument("--all", action="store_true", help="go on behind the first failing seed")
    asked.add_argument("--twice", action="store_true", help="live each world twice and compare both")
    asked.add_argument("--whole", action="store_true", help="do not make a failing plan smaller")
    asked.add_argument("--no-stories", action="store_true", help="do not live the kept stories first")
    asked.add_argument("--story", help="replay a kept story, by its name")
    asked.add_argument("--keep", help="keep the smaller plan of --seed as a story of this name")
    asked.add_argument("--json", action="store_true", help="print one JSON object")
    given = asked.parse_args()
    if given.seed is not None or given.story is not None:
        return replay(given)
    first, _, last = given.seeds.rpartition("-")
    seeds = range(int(first), int(last) + 1) if first else range(int(last))
    names = [] if given.no_stories else sorted(one.stem for one in STORIES.glob("*.json"))
    plans = [names, *(seeds[start : start + AT_ONCE] for start in range(0, len(seeds), AT_ONCE))]
    began, told = time.monotonic(), Told()
    for part in filter(None, plans):
        told.add(forked(part, given, until=began + given.seconds))
        if (told.failed and not given.all) or time.monotonic() - began > given.seconds:
            break
    took = time.monotonic() - began
    rate = told.worlds / took
    if given.json:
        facts = {"seconds": round(took, 1), "rate": round(rate, 1), "faults": dict(told.happened)}
        print(json.dumps({"worlds": told.worlds, "failed": told.failed, **facts}))
        return int(bool(told.failed))
    print(
        f"{told.worlds} worlds in {took:.1f} s, {rate:.0f} a second; {sum(told.happened.values())} faults; "
        f"{len(told.failed)} failed"
    )
    if told.failed and not given.all:
        tell(told.failed[0]["seed"], is_whole=given.whole)
    return int(bool(told.failed))


@dataclass
class Told:
    """The counts of some worlds."""

    worlds: int = 0
    failed: list[dict[str, Any]] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Told") -> None:
        """Add what other worlds have shown."""
        self.worlds += other.worlds
        self.failed += other.failed
        self.happened += other.happened


def forked(part: Sequence[int | str], given: argparse.Namespace, *, until: float) -> Told:
    """Run these worlds in a process that ends with them: it never has to collect their garbage."""
    heard, say = os.pipe()
    prepare()
    if not (child := os.fork()):
        status = 1
        try:
            os.close(heard)
            with os.fdopen(say, "wb") as answer:
                pickle.dump(lived(part, given, until=until), answer)
            status = 0
        finally:
            sys.stdout.flush()
            os._exit(status)
    os.close(say)
    with os.fdopen(heard, "rb") as answer:
        said = answer.read()
    os.waitpid(child, 0)
    if not said:
        raise RuntimeError(f"the process of the worlds {part[0]} to {part[-1]} has died")
    told: Told = pickle.loads(said)
    return told


def lived(part: Sequence[int | str], given: argparse.Namespace, *, until: float) -> Told:
    """Run worlds by seeds or by the names of stories, until the first that fails or until the time limit."""
    told = Told()
    for seed in part:
        plan = planned(seed)
        result = live(plan)
        told.worlds += 1
        told.happened.update(result.happened)
        if given.twice and live(plan).digest != result.digest:
            result.found.append("NOT THE SAME: a second run of this seed went another way")
        if result.found:
            told.failed.append({"seed": seed, "found": result.found})
            if not given.json:
                print(f"seed {seed}: {result.found[0]}", flush=True)
            if not given.all:
                break
        if time.monotonic() > until:
            break
    return told


def planned(seed: int | str) -> Plan:
    """Return the plan of a seed, or the kept one of a name."""
    return plan_of(seed) if isinstance(seed, int) else story(seed)


def tell(seed: int | str, *, is_whole: bool) -> None:
    """Print the short story of a failing plan."""
    plan = planned(seed)
    if not is_whole:
        plan = smallest(plan, live(plan).rules)
    print(f"\nThe story of seed {seed}:")
    print("\n".join(f"  {line}" for line in plan.story()))
    result = live(plan, is_traced=True)
    print("\n".join(result.trace))
    print("\n".join(result.found))
    print(f"\nReplay it: make simulate {'SEED' if isinstance(seed, int) else 'STORY'}={seed}")


def replay(given: argparse.Namespace) -> int:
    """Print what happens in the world of one seed."""
    plan = planned(given.seed if given.story is None else given.story)
    if given.keep:
        plan = smallest(plan, live(plan).rules)
        (STORIES / f"{given.keep}.json").write_text(json.dumps(plan.encoded(), indent=1) + "\n")
    result = live(plan, is_traced=True)
    if given.json:
        print(
            json.dumps(
                {"seed": plan.seed, "found": result.found, "story": list(plan.story()), "trace": result.trace}
            )
        )
        return int(bool(result.found))
    print("\n".join(plan.story()))
    print("\n".join(result.trace))
    print("\n".join(result.found) or "no rule is broken")
    print(
        f"digest {result.digest & 0xFFFFFFFF:08x}, {result.turns} turns, {result.commits} changes, {result.lived_ms} ms lived"
    )
    return int(bool(result.found))


if __name__ == "__main__":
    sys.exit(main())

"""python -m simulation [--seeds 200 | --seeds 100-299] [--seed N] [--json]: live worlds and report what is wrong."""

import argparse
import gc
import json
import os
import sys
import time
from collections import Counter
from itertools import chain
from pathlib import Path

if os.environ.get("PYTHONHASHSEED") != "0":  # texts in sets keep one order in every process
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]])

from simulation.plan import Plan, plan_of
from simulation.world import live, smallest

STORIES = Path(__file__).with_name("stories")
"""Plans that have shown a fault once, made smaller."""


def story(name: str) -> Plan:
    """Return a kept plan."""
    return Plan.decoded(json.loads((STORIES / f"{name}.json").read_text()))


def main() -> int:
    """Live the worlds that were asked for; return 1 if one of them breaks a rule."""
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
    began, lived, failed, happened = time.monotonic(), 0, [], Counter()
    plans = [
        (name, story(name))
        for name in sorted(one.stem for one in STORIES.glob("*.json"))
        if not given.no_stories
    ]
    for seed, plan in chain(plans, ((seed, plan_of(seed)) for seed in seeds)):
        result = live(plan)
        lived += 1
        happened.update(result.happened)
        if given.twice and live(plan).digest != result.digest:
            result.found.append("NOT THE SAME: a second run of this seed went another way")
        if result.found:
            failed.append({"seed": seed, "found": result.found})
            if not given.json:
                print(f"seed {seed}: {result.found[0]}", flush=True)
            if not given.all:
                break
        if lived % 40 == 0:
            gc.collect()
        if time.monotonic() - began > given.seconds:
            break
    took = time.monotonic() - began
    rate = lived / took
    if given.json:
        told = {
            "worlds": lived,
            "seconds": round(took, 1),
            "rate": round(rate, 1),
            "failed": failed,
            "faults": dict(happened),
        }
        print(json.dumps(told))
        return int(bool(failed))
    print(
        f"{lived} worlds in {took:.1f} s, {rate:.0f} a second; {sum(happened.values())} faults; {len(failed)} failed"
    )
    if failed and not given.all:
        tell(failed[0]["seed"], plan, is_whole=given.whole)
    return int(bool(failed))


def tell(seed: int | str, plan: Plan, *, is_whole: bool) -> None:
    """Print the short story of a failing plan."""
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
    plan = plan_of(given.seed) if given.story is None else story(given.story)
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

"""Time one check of a new pattern against 5,000 live ones, beside a plain string-prefix loop of the same run.

Run: `python benchmarks/globs.py`. Takes about ten seconds, needs no server and writes nothing.
"""

import random
import statistics
from collections.abc import Callable
from functools import partial
from time import perf_counter

from benchmarks.figures import size
from postroom.mail.globs import Pattern, overlap, overlapping, parse_pattern

LIVE = size(5_000, 200)
CHECKS = size(200, 5)
FOLDERS = ("src", "tests", "docs", "web", "packages/core", "packages/ui")
PARTS = ("alpha", "beta", "gamma", "delta", "eps", "zeta")


def usual(count: int, seed: int) -> list[str]:
    """A tree of files: 60 % paths, 15 % folders, 22 % globs below a folder, 3 % globs from the root."""
    chance = random.Random(seed)
    written = []
    for number in range(count):
        folder = "/".join([chance.choice(FOLDERS), *chance.choices(PARTS, k=chance.randint(1, 3))])
        shapes = (f"{folder}/file_{number}.py", f"{folder}/mod_{number}/**", f"{folder}/**/*_{number}.py")
        more = (f"{folder}/part{number}_*.ts", f"**/name_{number}*.md")
        written += chance.choices(shapes + more, weights=(60, 15, 10, 12, 3))
    return written


def numbered(form: str) -> list[str]:
    return [form.format(number) for number in range(LIVE)]


def mixes() -> dict[str, tuple[list[str], list[str]]]:
    """Live patterns and the new ones to check, by name; all but the first have empty prefixes only."""
    stars = numbered("**/name_{}*.py")
    return {
        "usual mix": (usual(LIVE, 1), usual(CHECKS, 2)),
        "worst mix: **/name_N*.py": (stars, [f"**/name_{number}*.py" for number in range(CHECKS)]),
        "the same, all overlap": (stars, ["**/*.py"] * CHECKS),
        "**/name_N.py, all overlap": (numbered("**/name_{}.py"), ["**/*.py"] * CHECKS),
        "fixed depth */*/*_N_*.py": (numbered("*/*/*_{}_*.py"), ["*/*/*.py"] * CHECKS),
        "sets **/name_N?[ab]*.py": (numbered("**/name_{}?[ab]*.py"), ["**/*[a-z].py"] * CHECKS),
        "gaps **/a/**/name_N*x*.py": (numbered("**/a/**/name_{}*x*.py"), ["*/*/*/*n*a*.py"] * CHECKS),
        "folders **/a_N*/**/x.py": (numbered("**/a_{}*/**/x.py"), ["*/*b/*/x*.py"] * CHECKS),
        "fixed names **/n?_N?.py": (numbered("**/n?_{}?.py"), ["**/n*[ab]?.py"] * CHECKS),
    }


def adversarial_pairs() -> dict[str, tuple[str, str]]:
    """Pairs of at most 1,024 characters and 32 wildcards, made to be slow."""
    distinct = "".join(chr(0x4E00 + number) for number in range(900))
    sets = "".join(f"[{chr(0x4E00 + 3 * number)}x]" for number in range(28))
    leaves = "/".join(f"[{message}x]y" for message in distinct[:10])
    return {
        "*a*a*a*... and a*1000": ("*a" * 31 + "*b", "a" * 999 + "?"),
        "*a*a*a*... twice": ("*a" * 31, "*a" * 30 + "*b"),
        "long run, one ? each": ("*" + "a" * 300 + "?b" + "a" * 200 + "*", "a" * 500 + "?" + "a" * 500),
        "900 distinct, 28 sets": (f"*{distinct}?*", f"{distinct[:400]}{sets}{distinct[428:]}z"),
        "28 globs, 490 names": (
            "**/" + "/".join(f"{message}*" for message in distinct[:28]) + "/**",
            "/".join(distinct[:480]) + f"/{leaves}/?",
        ),
    }


def timed(call: Callable[[], object]) -> float:
    """Milliseconds one call takes."""
    started = perf_counter()
    call()
    return (perf_counter() - started) * 1_000


def prefix_loop(prefix: str, live: list[str]) -> list[int]:
    """The least any check does: compare the prefixes as strings."""
    return [at for at, other in enumerate(live) if other.startswith(prefix) or prefix.startswith(other)]


def report_mix(name: str, live: list[str], checked: list[str]) -> None:
    reading = timed(lambda: [parse_pattern(raw) for raw in live])
    again = timed(lambda: [parse_pattern(raw) for raw in live])
    patterns: list[Pattern] = [parse_pattern(raw) for raw in live]
    prefixes = [pattern.prefix for pattern in patterns]
    took, plain = [], []
    for pattern in map(parse_pattern, checked):
        took.append(timed(partial(overlapping, pattern, patterns)))
        plain.append(timed(partial(prefix_loop, pattern.prefix, prefixes)))
    p50, p95 = statistics.median(took), statistics.quantiles(took, n=20)[-1]
    ratio = p50 / statistics.median(plain)
    print(f"{name:<28} p50 {p50:6.2f} ms  p95 {p95:6.2f} ms  {ratio:5.1f} x prefix loop", end="  ")
    print(f"(reading all: first {reading:4.0f} ms, again {again:.1f} ms)")


def report_pair(name: str, a: str, b: str) -> None:
    one, other = parse_pattern(a), parse_pattern(b)
    took = [timed(partial(overlap, one, other)) for _ in range(50)]
    p50, p95 = statistics.median(took), statistics.quantiles(took, n=20)[-1]
    print(f"{name:<28} p50 {p50:6.2f} ms  p95 {p95:6.2f} ms")


def main() -> None:
    print(f"one check against {LIVE:,} live patterns, {CHECKS} checks")
    for name, (live, checked) in mixes().items():
        report_mix(name, live, checked)
    print("one pair designed to be slow")
    for name, (a, b) in adversarial_pairs().items():
        report_pair(name, a, b)


if __name__ == "__main__":
    main()

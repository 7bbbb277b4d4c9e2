"""The decisions of a seed before a world begins: its settings, the acts of callers, and the faults with their times.

A plan is data: a failing plan is reduced by leaving parts out, and printed as a story.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

CHANGE_FAULTS = (
    "reply lost",
    "change lost",
    "refused",
    "run twice",
    "slow there",
    "slow back",
    "killed behind",
    "another killed behind",
    "killed while sent",
    "frozen behind",
    "frozen while sent",
    "cut off",
)
CHANGES = ("end", "end", "claim", "moved", "renew_leases", "submit", "committed", "accepted", "ask")
"""The names of changes at which half of the faults are aimed."""
HINT_FAULTS = ("hint lost", "hint doubled")
EFFECT_FAULTS = ("effect refused", "effect unknown", "effect slow")


@dataclass(frozen=True)
class Fault:
    """A fault, aimed at the n-th change, hint or effect of a world; -n aims at the n-th look."""

    kind: str
    n: int
    ms: int = 0
    """How long it lasts; for hints, how many of them it hits."""
    change: str = ""
    """The name of the changes that are counted; without one, all are."""
    late: bool = False
    """Whether the change of a frozen server arrives only when the server continues, and the change of a killed one after
    `ms`.
    """

    def __str__(self) -> str:
        length = f" for {self.ms} ms" if self.ms and "hint" not in self.kind else ""
        return f"{self.kind}{length}, at {self.change or ('look' if self.n < 0 else 'number')} {abs(self.n)}"


@dataclass(frozen=True)
class Act:
    """One thing that a caller or an operator does."""

    at: int
    """Milliseconds since the world began."""
    kind: str
    data: dict[str, Any] = field(default_factory=dict)
    server: int = 0
    hangs_up_at: int | None = None
    """At which step to the database the caller hangs up; None: it waits."""

    def __str__(self) -> str:
        hangs = f", hangs up at step {self.hangs_up_at}" if self.hangs_up_at else ""
        facts = ", ".join(f"{name} {value}" for name, value in self.data.items())
        return f"{self.at:>6} ms  {self.kind} ({facts}) at server {self.server}{hangs}"


@dataclass(frozen=True)
class Plan:
    """Everything that a seed has decided."""

    seed: int
    servers: int
    skews: tuple[int, ...]
    settings: dict[str, Any]
    acts: tuple[Act, ...]
    faults: tuple[Fault, ...]

    def story(self) -> Iterator[str]:
        """Yield the plan in sentences."""
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        yield f"{self.servers} servers, clocks {list(self.skews)} ms ahead; {settings}"
        yield from (str(act) for act in sorted(self.acts, key=lambda act: act.at))
        yield from (f"fault: {fault}" for fault in self.faults)

    def encoded(self) -> dict[str, Any]:
        """Return the plan as JSON can keep it."""
        return asdict(self)

    @classmethod
    def decoded(cls, kept: dict[str, Any]) -> "Plan":
        """Return the plan that `encoded` has kept."""
        parts = {
            "skews": tuple(kept["skews"]),
            "acts": tuple(Act(**act) for act in kept["acts"]),
            "faults": tuple(Fault(**fault) for fault in kept["faults"]),
        }
        return cls(**{**kept, **parts})

    def smaller(self) -> Iterator["Plan"]:
        """Yield plans with less in them, those with much less first."""
        for name in ("acts", "faults"):
            parts = getattr(self, name)
            size = len(parts) // 2
            while size:
                for first in range(0, len(parts), size):
                    yield replace(self, **{name: parts[:first] + parts[first + size :]})
                size //= 2
        if self.servers > 1:
            yield replace(self, servers=self.servers - 1)
        if any(self.skews):
            yield replace(self, skews=(0,) * len(self.skews))
        for place, act in enumerate(self.acts):
            simpler = []
            if act.hangs_up_at:
                simpler.append(replace(act, hangs_up_at=None))
            if act.data.get("script"):
                script = act.data["script"]
                simpler += [
                    replace(act, data={**act.data, "script": script[:index] + script[index + 1 :]})
                    for index in range(len(script))
                ]
            for one in simpler:
                yield replace(self, acts=(*self.acts[:place], one, *self.acts[place + 1 :]))
        for name in ("relay", "schedules", "leases"):
            if self.settings.get(name):
                yield replace(self, settings={**self.settings, name: False})


@dataclass
class Draft:
    """A plan while it is drawn."""

    servers: int
    settings: dict[str, Any]
    acts: list[Act] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    jobs: int = 0
    has_one_time: bool = False
    """Whether the clocks of all servers agree."""

    def enqueue(self, script: list[list[Any]], *, at: int = 0, policy: str = "queue", server: int = 0) -> int:
        """Add a job on the thread `t0`; return its number."""
        data = {"job": self.jobs, "thread": "t0", "script": script, "policy": policy}
        self.acts.append(Act(at, "enqueue", data, server))
        self.jobs += 1
        return self.jobs - 1

    @property
    def long_ms(self) -> int:
        """A time within which a server that has died or frozen has lost all its claims to others."""
        return int(self.settings["lease_ms"]) + int(self.settings["sweep_s"]) * 1_000 + 1_500


def plan_of(seed: int) -> Plan:
    """Draw the plan of a seed."""
    draw = Random(f"plan {seed}")
    servers = draw.choice((1, 2, 2, 2, 3))
    settings: dict[str, Any] = {
        "lease_ms": 3_000,
        "slots": draw.choice((1, 2, 3, 8)),
        "at_once": draw.choice((None,) * 5 + (2,)),
        "relay": draw.random() < 0.4,
        "schedules": draw.random() < 0.15,
        "leases": draw.random() < 0.25,
        "sweep_s": draw.choice((1, 2, 5)),
        "rivals": draw.random() < 0.3,
        "limits": draw.choice((None,) * 8 + ("key", "starts")),
        "budget": draw.choice((None,) * 9 + (1,)),
    }
    has = draw.random()
    settings["mail"], settings["chats"] = has < 0.2, 0.2 <= has < 0.35
    settings["tasks"] = settings["mail"] and seed % 2 == 0
    settings["steers"] = settings["mail"] and seed % 3 != 0
    plan = Draft(servers, settings)
    if has >= 0.55:
        draw.choice(PATTERNS)(draw, plan)
        jobs = draw.choice((0, 0, 1, 2))
    else:
        jobs = draw.choice((1, 2, 2, 3, 3, 4, 5))
    kind = _sent if settings["mail"] else _spoken if settings["chats"] else _job
    plan.acts += [kind(draw, n) for n in range(plan.jobs, plan.jobs + jobs)]
    plan.jobs += jobs
    hangs = draw.random() < 0.4
    if settings["mail"] or settings["chats"]:
        settings |= {"relay": False, "schedules": False, "leases": False, "limits": None, "budget": None}
        plan.acts += [
            _accident(draw, kind, plan.servers)
            for kind in ("kill", "freeze", "leave")
            if draw.random() < 0.12
        ]
        if settings["chats"]:
            plan.acts += [_changed(draw) for _ in range(draw.choice((0, 0, 1, 1, 2)))]
    elif jobs:
        plan.acts += _other_acts(draw, plan)
    if hangs:
        plan.acts = [
            replace(act, hangs_up_at=draw.randint(1, 12))
            if act.kind in _CALLS and draw.random() < 0.5
            else act
            for act in plan.acts
        ]
    if not plan.faults or draw.random() < 0.3:
        plan.faults += _faults(draw, settings, plan.jobs)
    return Plan(
        seed=seed,
        servers=plan.servers,
        skews=tuple(
            0 if plan.has_one_time else draw.choice((0, 0, -100, 40, 100)) for _ in range(plan.servers)
        ),
        settings=settings,
        acts=tuple(plan.acts),
        faults=tuple(plan.faults),
    )


_CALLS = {"send", "enqueue", "many", "deliver", "now", "cancel"}


def _late_writes(draw: Random, plan: Draft) -> None:
    """The writes of a dead or frozen server about a run arrive when another server executes the run."""
    plan.servers = max(plan.servers, 2)
    written, script = draw.choice(
        (
            ("end", []),
            ("end", [["wait", 500]]),
            ("moved", [["fail", 1]]),
            ("committed", [["step", "s0", 1], ["wait", 500]]),
            ("added", [["log", "line"], ["wait", 500]]),
        )
    )
    plan.enqueue([["wait", 4_500], *script])
    kind = draw.choice(("frozen while sent", "frozen while sent", "killed while sent"))
    plan.faults.append(Fault(kind, draw.choice((1, 1, 1, 2)), plan.long_ms, written, late=True))


def _lost_replies(draw: Random, plan: Draft) -> None:
    """A server does not learn what its change has written, and more is queued on the thread."""
    plan.settings |= {"at_once": None, "slots": draw.choice((1, 2, 8))}
    for _ in range(draw.choice((2, 2, 3))):
        plan.enqueue(
            draw.choice(([], [["wait", 10]], [["wait", 500]], [["fail", 1]])), at=draw.choice((0, 0, 1))
        )
    kind = draw.choice(("reply lost", "reply lost", "slow back", "change lost", "killed behind"))
    ms = {"slow back": plan.settings["lease_ms"] + 200, "killed behind": 3_000}.get(kind, 0)
    plan.faults.append(Fault(kind, draw.choice((1, 1, 2)), ms, draw.choice(("end", "end", "end", "claim"))))


def _cut_off(draw: Random, plan: Draft) -> None:
    """A server loses its way to the database for about a lease, and continues its work."""
    plan.servers = max(plan.servers, 2)
    plan.settings["sweep_s"] = draw.choice((1, 1, 2))
    plan.enqueue([["wait", 4_500], *draw.choice(([], [["step", "s0", 50]], [["wait", 2_000]]))])
    if draw.random() < 0.5:
        plan.enqueue([["wait", 500]])
    ms = draw.choice((1_200, 2_500, 3_100, 4_000, 6_000))
    change = draw.choice(("renew_leases", "renew_leases", "renew_leases", "end"))
    plan.faults.append(Fault("cut off", draw.choice((1, 1, 2)), ms, change))


def _rivals(draw: Random, plan: Draft) -> None:
    """Two people answer each question at the same time."""
    plan.settings["rivals"] = True
    for _ in range(draw.choice((1, 1, 2))):
        ask = draw.choice((["ask", "may it?"], ["ask", "may it?"], ["ask for", "will you?", 5_000]))
        after = draw.choice(([], [["wait", 500]], [["wait", 2_000]], [["step", "s1", 50]]))
        plan.enqueue([*draw.choice(([], [["step", "s0", 1]])), ask, *after])


def _lost_effects(draw: Random, plan: Draft) -> None:
    """A change that stores an effect fails, or its reply is lost."""
    plan.settings["relay"] = True
    for _ in range(draw.choice((1, 2, 2))):
        plan.enqueue(draw.choice(([], [["wait", 10]], [["wait", 500]])))
    kind = draw.choice(("change lost", "change lost", "reply lost", "killed behind", "run twice"))
    plan.faults.append(Fault(kind, draw.choice((1, 1, 2)), 3_000 if "killed" in kind else 0, "end"))
    if draw.random() < 0.5:
        plan.faults.append(Fault(draw.choice(EFFECT_FAULTS), draw.choice((1, 1, 2))))


def _cancels(draw: Random, plan: Draft) -> None:
    """A run is cancelled through a server that does not execute it."""
    plan.servers = max(plan.servers, 2)
    job = plan.enqueue([*draw.choice(([], [["step", "s0", 1]])), ["wait", 2_000], ["wait", 2_000]])
    at = draw.choice((300, 1_000, 1_800))
    plan.acts.append(Act(at, "cancel", {"job": job}, draw.randrange(2)))
    what = draw.random()
    if what < 0.25:
        plan.acts.append(Act(at + draw.choice((1, 5, 100)), "kill", {"again_ms": 100}, draw.randrange(2)))
    elif what < 0.5:
        plan.acts.append(
            Act(at + draw.choice((1, 5, 100)), "leave", {"grace_ms": 0, "again_ms": 0}, draw.randrange(2))
        )
    elif what < 0.75:
        plan.faults.append(Fault("hint lost", 1, 30))


def _holders(draw: Random, plan: Draft) -> None:
    """The server that has a lease is suspended, or cannot renew it in time."""
    plan.servers = max(plan.servers, 2)
    plan.settings["leases"] = True
    plan.enqueue([["wait", 4_500], ["wait", 4_500]])
    kind = draw.choice(
        ("frozen behind", "frozen while sent", "cut off", "slow back", "slow there", "reply lost")
    )
    ms = 0 if kind == "reply lost" else draw.choice((1_800, 2_200, 2_600, 3_000, 3_600))
    plan.faults.append(Fault(kind, draw.randint(1, 8), ms, "_take", draw.random() < 0.5))


def _ticks(draw: Random, plan: Draft) -> None:
    """Servers race for the times of a schedule."""
    plan.servers = max(plan.servers, 2)
    plan.settings["schedules"] = True
    plan.has_one_time = draw.random() < 0.7
    plan.acts += _schedule(draw, plan.servers)
    kind = draw.choice(("slow there", "frozen while sent", "reply lost", "change lost", "frozen behind"))
    ms = 0 if "lost" in kind else draw.choice((300, 1_200, 2_500, 3_200))
    plan.faults.append(Fault(kind, draw.choice((1, 1, 2, 3)), ms, "submit", late=True))


def _interrupts(draw: Random, plan: Draft) -> None:
    """A run is interrupted over another server, which may die then, while its own server cannot be reached."""
    plan.servers = max(plan.servers, 2)
    plan.enqueue([["wait", 2_000], *draw.choice(([], [["step", "s0", 50]])), ["wait", 2_000]])
    at = draw.choice((300, 1_000, 1_900))
    plan.enqueue([["wait", 500]], at=at, policy="interrupt", server=draw.randrange(2))
    if draw.random() < 0.3:
        plan.enqueue([], at=at, policy="interrupt", server=draw.randrange(2))
    kind = draw.choice(
        ("frozen behind", "slow there", "slow back", "killed behind", "frozen while sent", "cut off")
    )
    name = draw.choice(("end", "renew_leases", "submit", "claim", "claim"))
    ms = draw.choice((300, 1_200, 2_500, plan.long_ms))
    plan.faults.append(Fault(kind, draw.choice((1, 1, 2)), ms, name, draw.random() < 0.5))


PATTERNS = (
    _late_writes,
    _lost_replies,
    _cut_off,
    _rivals,
    _lost_effects,
    _cancels,
    _holders,
    _ticks,
    _interrupts,
)
"""Dangers that need several things at once, which come together too seldom by chance."""


def _job(draw: Random, n: int) -> Act:
    script: list[list[Any]] = []
    for number in range(draw.choice((0, 0, 1, 1, 2, 3))):
        what = draw.choice(
            ("wait", "wait", "step", "step", "ask", "sleep", "stream", "log", "fail", "ask for")
        )
        about: list[Any] = {
            "wait": [draw.choice((0, 1, 10, 500, 2_000, 4_500))],
            "step": [f"s{number}", draw.choice((0, 1, 50, 1_000))],
            "ask": [f"may it {number}?"],
            "ask for": [f"will you {number}?", draw.choice((500, 5_000))],
            "sleep": [draw.choice((1, 100, 3_000))],
            "stream": [f"text {number}"],
            "log": [f"line {number}"],
            "fail": [draw.choice((1, 2, 3))],
        }[what]
        script.append([what, *about])
    if draw.random() < 0.06:
        script.append(["stubborn", draw.choice((500, 4_000))])
    if draw.random() < 0.05:
        script.append(["fail", 99])
    kind = draw.choice(("enqueue",) * 7 + ("many", "deliver", "deliver", "now"))
    data: dict[str, Any] = {"job": n, "thread": f"t{draw.choice((0, 0, 0, 0, 1, 1, 2))}", "script": script}
    if kind == "enqueue":
        data["policy"] = draw.choice(("queue",) * 6 + ("interrupt", "interrupt", "collect", "reject"))
        data["delay_ms"] = draw.choice((0, 0, 0, 700))
        data["attempts"] = draw.choice((None, None, None, None, 1, 2))
        data["deadline_ms"] = draw.choice((None,) * 7 + (1_500,))
        data["limit_key"] = draw.choice(("", "", "a", "b"))
    elif kind == "now":
        data["strategy"] = draw.choice(("interrupt", "interrupt", "rollback", "queue"))
    return Act(draw.choice((0, 0, 1, 2, 100, 700, 2_000)), kind, data, draw.randrange(8))


def _spoken(draw: Random, n: int) -> Act:
    """Draw a message that a person writes in a chat."""
    data = {"job": n, "chat": draw.choice(("11", "11", "12")), "script": _part(draw)}
    return Act(draw.choice((200, 200, 201, 400, 1_000, 2_500)), "say", data)


def _changed(draw: Random) -> Act:
    """Draw what a person does about a message."""
    how = draw.choice(("edit", "delete", "stop", "stop"))
    data = {"how": how, "place": draw.randrange(8), "text": draw.choice(("/stop", "/stop", "/stop all"))}
    return Act(draw.choice((203, 210, 405, 700, 1_200, 2_600)), "change", data)


def _sent(draw: Random, n: int) -> Act:
    """Draw a message that wakes one agent or two."""
    data = {
        "job": n,
        "to": draw.choice((["Ben"], ["Ben"], ["Cyd"], ["Ben", "Cyd"])),
        "mail_thread": draw.choice((None, "T-1", "T-1", "T-2")),
        "script": _part(draw),
    }
    return Act(draw.choice((0, 0, 1, 2, 100, 700, 2_000)), "send", data, draw.randrange(8))


def _part(draw: Random) -> list[list[Any]]:
    """Draw what an agent does for a message."""
    parts: list[list[Any]] = [
        ["wait", draw.choice((0, 1, 10, 500, 2_000, 4_500))] for _ in range(draw.choice((0, 1, 1, 2)))
    ]
    if draw.random() < 0.25:
        parts.insert(draw.randint(0, len(parts)), ["fail", draw.choice((1, 2, 99))])
    return parts


def _other_acts(draw: Random, plan: Draft) -> Iterator[Act]:
    """Draw the acts of callers and operators in addition to the jobs."""
    jobs, servers = plan.jobs, plan.servers
    has_schedule = any(act.kind == "schedule" for act in plan.acts)

    def act(
        share: float, kind: str, at: tuple[int, ...], data: Callable[[], dict[str, Any]]
    ) -> Iterator[Act]:
        if share == 1 or draw.random() < share:
            yield Act(draw.choice(at), kind, data(), draw.randrange(servers))

    for _ in range(draw.choice((0, 0, 0, 1, 1, 2))):
        yield from act(1, "cancel", (100, 700, 2_000, 3_500), lambda: {"job": draw.randrange(jobs)})
    yield from act(0.15, "retract", (50, 500, 3_000), lambda: {"thread": f"t{draw.randrange(2)}"})
    yield from act(0.2, "replay", (2_000, 5_000), dict)
    yield from act(0.3, "follow", (0, 300, 3_000), lambda: {"job": draw.randrange(jobs)})
    if plan.settings["schedules"] and not has_schedule:
        yield from _schedule(draw, servers)
    for kind in ("kill", "freeze", "leave"):
        if draw.random() < 0.12:
            yield _accident(draw, kind, servers)


def _schedule(draw: Random, servers: int) -> Iterator[Act]:
    schedule = {
        "missed": draw.choice(("all", "once", "skip")),
        "overlap": draw.choice(("queue", "skip")),
        "script": [["wait", draw.choice((0, 500, 3_000))]],
        "lasts_ms": draw.choice((3_000, 5_000)),
    }
    yield Act(0, "schedule", schedule, draw.randrange(servers))


def _accident(draw: Random, kind: str, servers: int) -> Act:
    data = {
        "kill": {"again_ms": draw.choice((100, 3_000))},
        "freeze": {"ms": draw.choice((300, 2_500, 3_500, 6_500))},
        "leave": {"grace_ms": draw.choice((0, 500)), "again_ms": draw.choice((0, 3_000))},
    }[kind]
    return Act(draw.choice((50, 500, 1_500, 4_000)), kind, data, draw.randrange(servers))


def _faults(draw: Random, settings: dict[str, Any], jobs: int) -> Iterator[Fault]:
    """Draw faults; most worlds have one to three, for a short story says more."""
    last = 8 + 8 * jobs
    for _ in range(draw.choice((0, 1, 1, 1, 2, 2, 3, 4))):
        kind = draw.choice(CHANGE_FAULTS)
        lease = settings["lease_ms"]
        long = lease + settings["sweep_s"] * 1_000 + 1_500
        ms = {
            "slow there": draw.choice((300, 1_200, lease + 200)),
            "slow back": draw.choice((300, 1_200, lease + 200)),
            "killed behind": draw.choice((100, 3_000)),
            "another killed behind": draw.choice((100, 3_000)),
            "killed while sent": draw.choice((100, 3_000, long)),
            "frozen behind": draw.choice((300, lease - 500, lease + 500, long)),
            "frozen while sent": draw.choice((300, lease - 500, lease + 500, long)),
            "cut off": draw.choice((300, 1_200, lease, lease + 1_000)),
        }.get(kind, 0)
        name = draw.choice(CHANGES) if draw.random() < 0.5 else ""
        yield Fault(
            kind,
            draw.choice((1, 1, 2, 3, 4)) if name else draw.randint(1, last),
            ms,
            name,
            draw.random() < 0.5,
        )
    if draw.random() < 0.15:
        yield Fault("unread", -draw.randint(1, 60))
    if draw.random() < 0.25:
        yield Fault(draw.choice(HINT_FAULTS), draw.randint(1, 20), draw.choice((1, 3, 30)))
    if settings["relay"] or settings["chats"]:
        for _ in range(draw.choice((0, 1, 1, 2))):
            yield Fault(draw.choice(EFFECT_FAULTS), draw.randint(1, 6))

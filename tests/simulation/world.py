"""One world: servers over one database, callers, and accidents; and its faults at the end."""

import asyncio
import gc
import logging
import os
import random as random_module
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from random import Random

from postroom.contracts import clock
from postroom.contracts.errors import PostroomError
from postroom.contracts.schedules import Schedule
from simulation.books import Commits, Outcome, Rounds, audit
from simulation.callers import DELIVERED, Caller, Follower, HungUp, Job
from simulation.chats import ChatPlatform, Told
from simulation.database import Database, Network, prepare_rows
from simulation.loop import START_MS, Process, SimulatedLoop, Stuck
from simulation.mail import has_untold
from simulation.plan import HINT_FAULTS, Act, Fault, Plan
from simulation.servers import Post, Server, effect_faults
from simulation.work import Watch

FAULTS_MS = 15_000
"""The least time during which faults happen, if the work takes that long."""
QUIET_MS = 120_000
"""Maximum time of a world without further faults until all work has ended."""
_TASKS = getattr(asyncio.tasks, "_scheduled_tasks" if sys.version_info >= (3, 12) else "_all_tasks")
"""The tasks that asyncio knows. Those of a dead server never end, and tasks of later worlds have the same hashes."""
_CRASHES = {
    "task.failed",
    "dispatch.failed",
    "schedule.target_crashed",
    "effect.handler_crashed",
    "mailbox.round_failed",
}
"""Events of the log that report an unexpected exception."""


@dataclass
class Result:
    """The result of a world."""

    seed: int
    found: list[str]
    digest: int
    lived_ms: int
    turns: int
    commits: int
    happened: Counter[str]
    trace: list[str] = field(default_factory=list)

    @property
    def rules(self) -> set[str]:
        """The names of the rules that were broken."""
        return {one.split(":")[0] if ":" in one else one[:20] for one in self.found}


class World:
    """Lives one plan."""

    def __init__(self, plan: Plan, *, is_traced: bool = False) -> None:
        self.plan = plan
        self.trace: list[str] = []
        self.found: list[str] = []
        self.random = Random(f"world {plan.seed}")
        self.loop = SimulatedLoop(Random(f"order {plan.seed}"))
        self.loop.set_exception_handler(lambda _, about: self.found.append(f"UNHANDLED: {about}"[:600]))
        at_changes = [
            fault for fault in plan.faults if fault.kind not in HINT_FAULTS and "effect" not in fault.kind
        ]
        self.database = Database(self.loop, at_changes, Random(f"ways {plan.seed}"))
        hints = [fault for fault in plan.faults if fault.kind in HINT_FAULTS]
        self.network = Network(self.loop, self.database, hints)
        self.post = Post(effect_faults(plan.faults))
        self.watch = Watch(self.loop, self._has_ended, self._claimed_ms)
        counts = all(act.kind != "now" for act in plan.acts)  # what a caller waits for passes all limits
        self.commits = Commits(
            self.database,
            has_leases=plan.settings["leases"] or plan.settings["chats"],
            at_once=plan.settings["at_once"] if counts else None,
            of_a_key=1 if counts and plan.settings.get("limits") == "key" else None,
        )
        self.servers: list[Server] = []
        self.rounds = Rounds(self.commits, self.servers, plan.settings)
        self.database.on_commit = self.commits.look
        self.database.on_fault = self._struck
        self.jobs = [Job(act) for act in plan.acts if "script" in act.data and act.kind != "schedule"]
        self.watch.interrupted |= {job.thread for job in self.jobs if job.policy == "interrupt"}
        self.watch.scripts = {job.n: job.script for job in self.jobs}
        self.watch.platform = self.platform = ChatPlatform(self.loop, self.post, self.database)
        self.followers: list[Follower] = []
        self.answered: dict[str, list[str]] = {}
        """The answers that were confirmed to a caller, by question."""
        self.answering = 0
        """How many people are answering a question now."""
        self.is_replayed = False
        self.caller = Caller(self.loop, self.random, self._up)
        if is_traced:
            self.database.note = self.watch.note = self._note

    def run(self) -> Result:
        """Run, and return the faults."""
        loop = self.loop
        before = clock.elapsed_ms
        clock.elapsed_ms = lambda: loop.ms
        try:
            loop.run_until_complete(self._live())
        except Stuck:
            self.found.append("STUCK: every task waits for an event that never comes")
        except Exception:  # a world that cannot be judged is one that somebody must look at
            self.found.append(f"BROKEN: {traceback.format_exc()[-1500:]}")
        finally:
            clock.elapsed_ms = before
            loop.is_over = True
            self.database.close()
            _TASKS.clear()
        found = [*self.watch.found, *self.commits.found, *self.rounds.found, *self.found]
        return Result(
            self.plan.seed,
            found,
            loop.digest,
            loop.ms,
            loop.turns,
            self.database.commits,
            self.database.happened,
            self.trace,
        )

    def log(self, record: logging.LogRecord) -> None:
        """Put a line of the product's log into the trace; an unforeseen exception is a finding."""
        event = getattr(record.msg, "event", str(record.msg))
        if self.database.note is not None:
            text = record.getMessage().partition("\n")[0]
            self._note(f"{self.loop.current.name}   | {record.levelname.lower()} {text[:300]}")
        cause = record.exc_info[1] if record.exc_info else None
        # A refusal of a call whose caller hung up is logged; a round must survive whatever the store raises.
        is_round = event == "task.failed" and ": a " not in record.getMessage()
        is_foreseen = isinstance(cause, PostroomError) and not is_round
        if event in _CRASHES and not self.loop.is_over and not is_foreseen:
            self.found.append(f"CRASH: {record.getMessage()[:300]} {cause!r:.300}")

    def _note(self, text: str) -> None:
        self.trace.append(f"{self.loop.ms:>7} {text}")

    def _has_ended(self, run_id: str) -> bool:
        return self.database.rows("SELECT status FROM runs WHERE run_id = ?", (run_id,)) == [("done",)]

    def _claimed_ms(self, run_id: str) -> int:
        asked = "SELECT max(claimed_at) FROM run_dispatches WHERE run_id = ? AND status = 'Claimed'"
        return (self.database.rows(asked, (run_id,))[0][0] or 0) - START_MS

    # Life.

    async def _live(self) -> None:
        plan, loop = self.plan, self.loop
        for place in range(plan.servers):
            self._begin_server(plan.skews[place])
        rounds = loop.create_task(self._watch())
        answers = loop.create_task(self._answer())
        deliveries = loop.create_task(self.platform.deliver(self.servers)) if plan.settings["chats"] else None
        work = [loop.create_task(self._act(act)) for act in plan.acts]
        if work:
            await asyncio.wait(work)
        for one in work:
            one.result()
        while loop.ms < FAULTS_MS and not self._is_idle():
            await loop.passes(150)
        await self._calm()
        until = loop.ms + QUIET_MS
        is_over = False
        while not is_over:
            while loop.ms < until and not self._is_idle():
                await loop.passes(150)
            while self.answering or not any(one.is_awake for one in self.servers):
                await loop.passes(50)
            await loop.passes(300)
            # A server that was frozen may first write what it was asked before: that work must end as well.
            is_over = loop.ms >= until or self._is_idle()
        slots = [one.queue._dispatcher.slots for one in self._up()]
        if any(one.waiting or one.used for one in slots):
            await loop.passes(2_500)  # a poll clears the lines, and a call whose caller hung up ends
        if any(not one.is_over for one in self.followers):
            await loop.passes(11_000)  # a reader whose hint was lost looks again after ten seconds
        self.found += [
            f"NO END: the reader of {one.run_id} hears of no end" for one in self.followers if not one.is_over
        ]
        for follower in self.followers:
            await self._compare(follower)
        rounds.cancel()
        answers.cancel()
        if deliveries is not None:
            deliveries.cancel()
        happened = self.database.happened
        self.found += await audit(
            Outcome(
                servers=self.servers,
                jobs=self.jobs,
                watch=self.watch,
                post=self.post,
                commits=self.commits,
                settings=plan.settings,
                answered=self.answered,
                may_lose_attempts=bool(happened)
                or any(act.kind in ("kill", "freeze", "leave") for act in plan.acts),
                is_replayed=self.is_replayed,
                platform=self.platform,
            )
        )

    def _begin_server(self, skew_ms: int = 0) -> None:
        process = Process(f"s{len(self.servers) + 1}", skew_ms)
        random = Random(f"server {self.plan.seed} {process.name}")
        server = Server(
            process, self.database, self.network, self.post, self.watch, self.plan.settings, random
        )
        server.begin_another = self._begin_server
        server.works_alone = self.rounds.look_at_holder
        self.servers.append(server)
        server.start()

    def _up(self) -> list[Server]:
        return [one for one in self.servers if one.is_up]

    async def _calm(self) -> None:
        """End all faults; have at least one server."""
        self.database.is_calm = True
        for server in self.servers:
            server.process.frozen_until = min(server.process.frozen_until, self.loop.ms)
        if self.database.note is not None:
            self._note("from now on no fault happens")
        if all(one.process.is_dead for one in self.servers):
            self._begin_server()

    def _is_idle(self) -> bool:
        rows = self.database.rows
        if rows("SELECT 1 FROM runs WHERE status <> 'done' LIMIT 1"):
            return False
        if rows("SELECT 1 FROM run_dispatches WHERE is_open = 1 LIMIT 1"):
            return False
        if rows("SELECT 1 FROM pending_messages LIMIT 1"):  # the next sweep gives them to a run
            return False
        settings, unsent = self.plan.settings, "kind = 'notice' AND status IN ('pending', 'claimed')"
        if settings["relay"] and rows(f"SELECT 1 FROM outbox WHERE {unsent} LIMIT 1"):
            return False
        if settings["mail"] and (self._has_unwoken() or (settings.get("tasks") and has_untold(rows))):
            return False
        if settings["chats"] and not self._is_chat_idle():
            return False
        alive = [one for one in self.servers if not one.process.is_dead]
        return bool(alive) and all(one.is_awake and not one.queue._dispatcher._executing for one in alive)

    def _is_chat_idle(self) -> bool:
        rows = self.database.rows
        is_open = "SELECT 1 FROM inbound_messages WHERE status IN ('waiting', 'handed_over') LIMIT 1"
        unsent = "SELECT 1 FROM outbox WHERE kind <> 'archive' AND status IN ('pending', 'claimed') LIMIT 1"
        return not (self.platform.waiting or rows(is_open) or rows(unsent))

    def _has_unwoken(self) -> bool:
        """Whether a message has not yet started a run of an agent."""
        asked = {"message_id": 0, "agent_id": 0, "limit": 1}
        return bool(self.database.read(lambda sql: sql.all("mail.unwoken", asked)))

    async def _watch(self) -> None:
        while True:
            await self.loop.passes(500)
            self.rounds.look()

    def _struck(self, process: Process, fault: Fault) -> None:
        """Kill or freeze a server, as a fault at a change says."""
        if self.database.is_calm:  # the change was sent before
            return
        server = next(one for one in self.servers if one.process is process)
        if fault.kind == "another killed behind":
            if not (others := [one for one in self._up() if one is not server]):
                return
            server = others[0]
        if fault.kind.startswith("frozen"):
            server.freeze(fault.ms)
        else:
            server.kill()
            self.loop.call_at_ms(self.loop.ms + fault.ms, self._begin_server, process=self.loop.outside)

    # Acts.

    async def _act(self, act: Act) -> None:
        await self.loop.passes(act.at)
        if self.database.note is not None:
            self._note(f"-- {act}")
        await getattr(self, f"_act_{act.kind}", self._act_job)(act)

    async def _act_job(self, act: Act) -> None:
        job = next(one for one in self.jobs if one.act is act)
        try:
            job.run_id = await self.caller.insist(job.submit, prefers=act.server, hangs_up_at=act.hangs_up_at)
        except PostroomError as error:
            job.refused = error.code
        if self.database.note is not None:
            self._note(f"job {job.n} is {job.refused or job.run_id}")

    async def _act_say(self, act: Act) -> None:
        n = act.data["job"]
        self.platform.waiting.append(Told("say", act.data["chat"], f"m{n}", f"Please do job {n}."))

    async def _act_change(self, act: Act) -> None:
        """Have a person edit or delete a message, or stop a chat."""
        job, how = self.jobs[act.data["place"] % len(self.jobs)], act.data["how"]
        chat = job.act.data["chat"]
        if how == "stop":
            self.platform.excused |= {one.n for one in self.jobs if one.act.data["chat"] == chat}
            self.platform.waiting.append(Told("say", chat, f"c{act.at}", act.data["text"]))
        else:
            self.platform.excused |= {job.n} if how == "delete" else set()
            self.platform.waiting.append(Told(how, chat, f"m{job.n}", f"Please do job {job.n}. Soon."))

    async def _act_cancel(self, act: Act) -> None:
        job = next(
            (one for one in self.jobs if one.n == act.data["job"] and one.run_id not in (None, DELIVERED)),
            None,
        )
        if job is None:
            return
        run_id = str(job.run_id)
        for other in self.jobs:  # one run may have several jobs
            other.was_cancelled |= other.run_id == run_id or other.run_id is None
        with suppress(HungUp, PostroomError):
            is_told = await self.caller.call(
                lambda server: server.mailbox.cancel(run_id), prefers=act.server, hangs_up_at=act.hangs_up_at
            )
            for other in self.jobs:
                other.was_cancelled |= other.run_id == run_id
            if self.database.note is not None:
                self._note(f"cancel of {run_id} returned {is_told}")
            if is_told and not self.is_replayed:
                self.watch.cancelled.setdefault(run_id, self.loop.ms)

    async def _act_retract(self, act: Act) -> None:
        async def retract(server: Server) -> None:
            for one in (await server.mailbox.pending.list(act.data["thread"]))[:1]:
                meant = [job for job in self.jobs if job.message_id == one.pending_id]
                for job in meant:
                    job.may_be_retracted = True
                is_only = [job.run_id == DELIVERED and job.calls == 1 for job in meant]
                await server.mailbox.pending.retract(act.data["thread"], one.pending_id)
                for job, is_retracted in zip(meant, is_only, strict=True):
                    job.is_retracted |= is_retracted

        with suppress(HungUp, PostroomError):
            await self.caller.call(retract, prefers=act.server)

    async def _act_replay(self, act: Act) -> None:
        async def replay(server: Server) -> None:
            async for letter in server.mailbox.dead_letters:
                self.is_replayed = True  # its dispatch is gone then
                await server.mailbox.dead_letters.replay(letter.run_id)
                break

        with suppress(HungUp, PostroomError):
            await self.caller.call(replay, prefers=act.server)

    async def _act_follow(self, act: Act) -> None:
        job = next(
            (one for one in self.jobs if one.n == act.data["job"] and one.run_id not in (None, DELIVERED)),
            None,
        )
        if job is not None:
            follower = Follower(str(job.run_id))
            self.followers.append(follower)
            self.loop.create_task(self._follow(follower, act.server))

    async def _follow(self, follower: Follower, prefers: int) -> None:
        while not follower.is_over:
            while not (up := self._up()):
                await self.loop.passes(100)
            server = up[prefers % len(up)]
            prefers += 1
            task = self.loop.spawn(server.process, follower.read(server))
            until = self.loop.ms + self.random.choice((200, 3_000, 20_000))
            while (
                not task.done()
                and not server.process.is_dead
                and (self.database.is_calm or self.loop.ms < until)
            ):
                await self.loop.passes(200)
            if not task.done():
                self.loop.call_in(server.process, task.cancel)
            elif not task.cancelled() and isinstance(error := task.exception(), Exception):
                if not isinstance(error, PostroomError):
                    raise error
                await self.loop.passes(200)

    async def _compare(self, follower: Follower) -> None:
        """Report what a reader has missed or heard twice."""
        whole, server = Follower(follower.run_id), next(one for one in self._up() if one.is_awake)
        await self.loop.joined(server.process, whole.read(server))
        cursors = [cursor for cursor, _, _ in follower.told]
        if cursors != sorted(set(cursors)):
            self.found.append(f"READER: that of {follower.run_id} heard {cursors}")
        if missed := [one for one in whole.told if one not in follower.told and one[1] != "reset"]:
            self.found.append(f"READER: that of {follower.run_id} missed {missed}")

    async def _act_schedule(self, act: Act) -> None:
        told = {"n": "tick", "script": act.data["script"]}

        async def add(server: Server) -> Schedule:
            return await server.mailbox.schedules.add(
                "tick",
                "ticks",
                told,
                every=timedelta(seconds=2),
                missed=act.data["missed"],
                overlap=act.data["overlap"],
            )

        await self.caller.insist(add, prefers=act.server)
        await self.loop.passes(act.data["lasts_ms"])
        await self.caller.insist(lambda server: server.mailbox.schedules.pause("tick"), prefers=act.server)

    async def _act_kill(self, act: Act) -> None:
        if up := self._up():
            up[act.server % len(up)].kill()
            await self.loop.passes(act.data["again_ms"])
            self._begin_server()

    async def _act_freeze(self, act: Act) -> None:
        if up := self._up():
            up[act.server % len(up)].freeze(act.data["ms"])

    async def _act_leave(self, act: Act) -> None:
        if up := self._up():
            server = up[act.server % len(up)]
            self.loop.spawn(server.process, server.leave(act.data["grace_ms"]))
            await self.loop.passes(act.data["again_ms"])
            self._begin_server()

    async def _answer(self) -> None:
        """Answer every question, sooner or later."""
        draw, number = Random(f"answers {self.plan.seed}"), count()
        has_rival = self.plan.settings.get("rivals", False)

        async def answer(server: Server, run_id: str, text: str) -> None:
            handle = await server.mailbox.handle(run_id)
            question = (await handle.status()).question_id
            if question is not None:
                await handle.answer(text, approved=True, question_id=question)
                self.answered.setdefault(question, []).append(text)

        async def person(run_id: str, prefers: int, slow_ms: int = 0) -> None:
            text = f"yes {next(number)}"
            self.answering += 1
            with suppress(HungUp, PostroomError):
                await self.caller.call(
                    lambda server: answer(server, run_id, text), prefers=prefers, slow_ms=slow_ms
                )
            self.answering -= 1

        while True:
            await self.loop.passes(draw.choice((200, 600, 1_500)))
            asked = self.database.rows("SELECT run_id FROM runs WHERE status = 'waiting'")
            if asked:
                run_id = draw.choice(sorted(asked))[0]
                if has_rival:
                    slow_ms = draw.choice((0, 3, 20, 400))
                    self.loop.create_task(person(run_id, draw.randrange(8), slow_ms))
                await person(run_id, draw.randrange(8))


class _Log(logging.Handler):
    """Hands the lines of the product's log to the world that lives."""

    world: World | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self.world is not None:
            self.world.log(record)


_LOG = _Log()


@contextmanager
def nothing_by_chance(seed: int) -> Iterator[None]:
    """Take all random bytes from the seed for as long as a world lives."""
    chance = Random(f"chance {seed}")
    kept = os.urandom, random_module._urandom
    os.urandom = random_module._urandom = chance.randbytes
    gc.disable()
    try:
        yield
    finally:
        os.urandom, random_module._urandom = kept


def prepare() -> None:
    """Store the rows that every world begins with, and hear the product's log; harmless if done twice."""
    logger = logging.getLogger("postroom")
    if _LOG in logger.handlers:
        return
    logger.addHandler(_LOG)
    logger.propagate = False
    sys.unraisablehook = lambda _: None  # a dead server does not tidy up
    warnings.simplefilter("ignore", RuntimeWarning)  # a dead server does not begin what it was about to
    with nothing_by_chance(-1):
        prepare_rows()
    gc.collect()
    gc.freeze()


def live(plan: Plan, *, is_traced: bool = False) -> Result:
    """Live a plan and return what came of it."""
    prepare()
    logging.getLogger("postroom").setLevel(logging.DEBUG if is_traced else logging.ERROR)
    with nothing_by_chance(plan.seed):
        world = World(plan, is_traced=is_traced)
        _LOG.world = world
        try:
            return world.run()
        finally:
            _LOG.world = None


def smallest(plan: Plan, rules: set[str], *, seconds: float = 20) -> Plan:
    """Leave parts out of a failing plan for as long as one of its rules stays broken."""
    until = time.monotonic() + seconds
    is_smaller = True
    while is_smaller and time.monotonic() < until:
        is_smaller = False
        for candidate in plan.smaller():
            if time.monotonic() > until:
                break
            if live(candidate).rules & rules:
                plan, is_smaller = candidate, True
                break
    return plan

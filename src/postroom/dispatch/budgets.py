"""Budgets of runs, which are checked in the transaction that claims a run, under the lock of limits.

    used up ─▶ the first run asks ─┬─ yes ─▶ the same amount again: it resumes, and all held runs
    the others are held            ├─ no ──▶ they are held until the window ends; without one it asks again
                                   ├─ the window ends ─▶ this answers the question; all resume
                                   └─ cancelled ─▶ the next of them asks

Held runs stay queued. A held run's row contains the earliest time of the next try, before which the run
causes no work.

The time, tokens and money that a run uses are known only when it ends. Therefore the number of concurrent
runs is limited to the number that the rest of the budget can pay for, if each costs as much as the most
expensive recent run. While no cost is known yet, at most 4 runs execute.

Limits for all workers of one database are counted in the same transaction, under the same lock. Without
limits, these checks cost nothing. With limits, every claim is a separate transaction: a submission only
stores its run, and the end of a run does not claim the next one. Budgets need no separate transaction: a
submission and the end of a run claim the thread's next dispatch under the lock of limits. If a budget holds
that dispatch, a background round claims it later.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from postroom.contracts.clock import iso, milliseconds
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus, deadline_passed
from postroom.contracts.errors import DeadlinePassed
from postroom.contracts.limits import (
    BUDGET_TOOL,
    LIMITS,
    Budget,
    BudgetScope,
    Held,
    Limit,
    LimitScope,
    Spending,
)
from postroom.contracts.records import Record, replace
from postroom.contracts.run_stores import thread_lock
from postroom.contracts.runs import AnsweredTicket, RunRecord, RunStatus, RunWaitingTicket, Usage
from postroom.contracts.tools import ResumeDecisionAction, ToolCallResume, ToolCallResumeMode
from postroom.stores.runs.tables import RunTables
from postroom.stores.store import SqlStore, Transaction


@dataclass(slots=True, kw_only=True)
class Room:
    """The number of additional runs that the limits allow now."""

    limits: tuple[Limit, ...]
    used: Counter[str] = field(default_factory=Counter[str])
    closed: frozenset[str] = frozenset()
    """Scopes in which no run may start now."""

    def has(self, tenant: str, key: str) -> bool:
        """Return whether another run with a tenant and a key may execute."""
        return all(
            scope not in self.closed and (limit.at_once is None or self.used[scope] < limit.at_once)
            for limit in self.limits
            if (scope := limit.scope(tenant, key)) is not None
        )

    def take(self, tenant: str, key: str) -> bool:
        """Return whether another run may execute, and count the run if it may."""
        if not self.has(tenant, key):
            return False
        self.used.update(_scopes(self.limits, tenant, key))
        return True

    def full_keys(self) -> list[str]:
        """Return the limit keys under which no additional run may start."""
        prefix = f"{LimitScope.KEY}:"
        fields = {scope for scope in (*self.used, *self.closed) if scope.startswith(prefix)}
        return sorted(key for scope in fields if not self.has("", key := scope.removeprefix(prefix)))


def room_in(tx: Transaction, limits: tuple[Limit, ...], closed: frozenset[str] = frozenset()) -> Room:
    """Return how many additional runs the limits allow."""
    room = Room(limits=limits, closed=closed)
    if any(limit.at_once is not None for limit in limits):
        for tenant, key, count in tx.runs.dispatches.claimed_by_limit():
            for scope in _scopes(limits, tenant, key):
                room.used[scope] += count
    return room


def held_back(tx: Transaction, limits: tuple[Limit, ...], dispatch: RunDispatch) -> Held | None:
    """Return the limit that prevents a dispatch from starting, or None; the caller locks the limits."""
    room, now = room_in(tx, limits), tx.now()
    for limit in limits:
        scope = limit.scope(dispatch.tenant, dispatch.limit_key)
        if scope is None:
            continue
        if limit.at_once is not None and room.used[scope] >= limit.at_once:
            return Held(scope=scope, text=f"{room.used[scope]} active runs of {scope} reach the limit")
        if limit.starts is not None and limit.period is not None:
            _, before = tx.runs.dispatches.starts(scope, limit.starts)
            until = None if before is None else before + milliseconds(limit.period)
            if until is not None and until > now:
                return Held(
                    scope=scope,
                    text=f"{limit.starts} runs of {scope} started within {limit.period}",
                    until=until,
                )
    return None


def note_start(tx: Transaction, limits: tuple[Limit, ...], dispatch: RunDispatch) -> None:
    """Count the start of a dispatch for limits on starts; the caller locks the limits."""
    most: dict[str, int] = {}
    for limit in limits:
        scope = limit.scope(dispatch.tenant, dispatch.limit_key)
        if scope is not None and limit.starts is not None:
            most[scope] = max(most.get(scope, 0), limit.starts)
    for scope, number in most.items():
        tx.runs.dispatches.note_start(scope, number)


def _scopes(limits: tuple[Limit, ...], tenant: str, key: str) -> set[str]:
    return {scope for limit in limits if (scope := limit.scope(tenant, key)) is not None}


_WHOSE: Final = {
    BudgetScope.THREAD: "this conversation",
    BudgetScope.TENANT: "{}",
    BudgetScope.KEY: "{}",
    BudgetScope.AGENT: "{}",
    BudgetScope.ALL: "all runs",
}
_UNITS: Final = {
    "runs": "runs",
    "wall_ms": "seconds of work",
    "tokens": "tokens",
    "cost_micros": "USD",
}
_MAX_REMEMBERED: Final = 10_000
_AT_ONCE_AT_FIRST: Final = 4
"""Maximum number of concurrent runs in a scope while the cost of a run is still unknown."""
MAILBOX: Final = "postroom"
"""The name of the answerer if the mailbox itself answers a question because its budget window has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A budget with a used-up limit."""

    budget: Budget
    limit: str
    whose: str
    spent: Spending

    @property
    def text(self) -> str:
        """A sentence that describes the used-up limit."""
        allowed, spent = self.budget.limits[self.limit], getattr(self.spent, self.limit)
        whose = _WHOSE[self.budget.per].format(self.whose)
        window = "" if self.budget.window is None else f" for this {self.budget.window}"
        used = f"{_amount(self.limit, spent)} of {_amount(self.limit, allowed)} {_UNITS[self.limit]}"
        return f"The budget of {whose}{window} is used up: {used}."

    def ticket(self, dispatch: RunDispatch, *, now: int) -> RunWaitingTicket:
        """Return the question to a person whether the budget may be extended."""
        spent, name = self.spent, f"{BUDGET_TOOL}/{self.spent.scope}/{self.limit}#{dispatch.dispatch_id}"
        until = "" if spent.until is None else f" Otherwise its runs continue at {iso(spent.until)}."
        return RunWaitingTicket(
            ticket_id=name,
            tool_call_id=name,
            tool_name=BUDGET_TOOL,
            resume_mode=ToolCallResumeMode.PASS_DECISION_TO_TOOL,
            arguments={
                "scope": spent.scope,
                "limit": self.limit,
                "allowed": self.budget.limits[self.limit],
                "spent": getattr(spent, self.limit),
                "grant": dict(self.budget.limits),
                "until": spent.until,
            },
            reason=f"{self.text} Grant the same amount again?{until}",
            updated_at=now,
        )


class Start(Record, frozen=True, kw_only=True):
    """The decision of limits and budgets about the start of a run."""

    held: Held | None = None
    """The reason why the run may not start now, or None if it may start."""
    holds_thread: bool = False
    """Whether the thread is held, too. The run is not tried again until an answer, or the end of the window,
    releases its thread.
    """
    asks: tuple[RunWaitingTicket, ...] = ()
    """The questions that the run must ask before it starts, because a budget is used up."""
    spends: tuple[Spending, ...] = ()
    """The amounts that the run adds to the spending of its budgets when it starts."""


class Budgets:
    """The budgets of one mailbox.

    The methods need a transaction that holds the lock of limits.
    """

    def __init__(self, budgets: Sequence[Budget]) -> None:
        self._budgets = tuple(budgets)
        self._of_costs = any(budget.limits.keys() - {"runs"} for budget in budgets)
        """Whether a budget limits costs, which are known only when a run ends."""
        self._highest = dict[tuple[BudgetScope, str], Spending]()
        """The highest cost of runs that ended in this process, keyed by scope.

        The cost of older runs has less weight.
        """
        self.holds_back = False
        """Whether a budget has refused a claim in this process. If so, due runs are examined together before
        they are claimed.
        """

    def start(
        self,
        tx: Transaction,
        dispatch: RunDispatch,
        run: RunRecord,
        *,
        starting: Counter[str] | None = None,
        is_now: bool = False,
    ) -> Start:
        """Decide whether a run may start, must ask a question first, or is held.

        A run is held while another run asks about the budget, or while active runs may use up the budget. A
        run whose question was approved always starts. `is_now` is true if a caller waits for the run.
        `starting` counts the starting runs of each scope, and is updated.
        """
        if not is_start(run) or dispatch.has_missed_deadline(now := tx.now()):
            return Start()
        ids = _ids(dispatch, run)
        allowed = set[str | None]()
        if run.waiting is not None:
            yes = {answered.ticket.ticket_id for answered in run.answered if answered.decision.approved}
            allowed = {_budget_scope(ticket) for ticket in run.waiting.tickets if ticket.ticket_id in yes}
        counted = [item for item in self._counted_budgets(ids, now) if item[1].scope not in allowed]
        spent = tx.runs.threads.spending([account.scope for _, account in counted])
        tickets = list[RunWaitingTicket]()
        for budget, account in counted:
            if (limit := budget.spent_up(spent[account.scope])) is None:
                continue
            used = replace(spent[account.scope], until=account.until)
            reached = Reached(budget=budget, limit=limit, whose=ids[budget.per], spent=used)
            if used.is_refused:
                why = "a person refused more"
            elif asks(tx.runs, used) and used.asked_by != run.run_id:
                why = f"run {used.asked_by} asks a person for the same amount again"
            else:
                tickets.append(reached.ticket(dispatch, now=now))
                continue
            text = f"{reached.text} The run waits: {why}"
            held = Held(scope=used.scope, text=text, until=used.until)
            return Start(held=held, holds_thread=True)
        if tickets:
            return Start(asks=tuple(tickets))
        if self._of_costs and not is_now:
            crowded = self._why_too_small(
                tx, counted, spent, ids, Counter() if starting is None else starting
            )
            if crowded is not None:
                return Start(held=crowded)
        # runs with the same scope and window share one count
        scopes = {account.scope: account for _, account in counted}
        return Start(spends=tuple(_of(account, runs=1) for account in scopes.values()))

    def _why_too_small(
        self,
        tx: Transaction,
        counted: Sequence[tuple[Budget, Spending]],
        spent: dict[str, Spending],
        ids: dict[BudgetScope, str],
        starting: Counter[str],
    ) -> Held | None:
        scopes = set[str]()
        for budget, account in counted:
            most = self._most_at_once(budget, spent[account.scope], ids[budget.per])
            if most is None:
                continue
            most -= starting[account.scope]
            if (count := _executing(tx, budget.per, ids[budget.per], most)) >= most:
                why = f"{count + starting[account.scope]} active runs of {account.scope}"
                text = f"{why} use up the rest of their budget"
                return Held(scope=account.scope, text=text)
            scopes.add(account.scope)
        starting.update(scopes)
        return None

    def learn(self, dispatch: RunDispatch, run: RunRecord, used: Usage, *, wall_ms: int) -> None:
        """Record the usage of an execution, to estimate the usage of later runs."""
        ids, cost = _ids(dispatch, run), _costs(used, wall_ms)
        for budget in self._budgets if self._of_costs else ():
            key = (budget.per, ids[budget.per])
            before = self._highest.get(key, Spending(scope=""))
            if len(self._highest) >= _MAX_REMEMBERED and key not in self._highest:
                self._highest.clear()
            highest = {name: max(amount, getattr(before, name) * 9 // 10) for name, amount in cost.items()}
            self._highest[key] = Spending(scope="", **highest)

    def _most_at_once(self, budget: Budget, spent: Spending, whose: str) -> int | None:
        """Return the number of a budget's runs that may execute at once, or None for no limit."""
        limits = {name: limit for name, limit in budget.limits.items() if name != "runs"}
        if not limits or budget.per is BudgetScope.THREAD:
            return None
        highest = self._highest.get((budget.per, whose))
        if highest is None:
            return _AT_ONCE_AT_FIRST
        most = [
            max((limit - getattr(spent, name)) // cost, 1)
            for name, limit in limits.items()
            if (cost := getattr(highest, name))
        ]
        return min(most, default=None)

    def spent_by(
        self, dispatch: RunDispatch, run: RunRecord, used: Usage, *, now: int, wall_ms: int = 0
    ) -> tuple[Spending, ...]:
        """Return the amounts that an execution uses of each budget."""
        cost = _costs(used, wall_ms)
        if not self._of_costs or not any(cost.values()):
            return ()
        scopes = {account.scope: account for _, account in self._counted_budgets(_ids(dispatch, run), now)}
        return tuple(_of(account, **cost) for account in scopes.values())

    def _counted_budgets(self, ids: dict[BudgetScope, str], now: int) -> Iterator[tuple[Budget, Spending]]:
        for budget in self._budgets:
            account = budget.account(ids, now)
            if account is not None:
                yield budget, account


def _executing(tx: Transaction, per: BudgetScope, whose: str, at_most: int) -> int:
    counted = 0
    for tenant, key, count in tx.runs.dispatches.begun_by_limit():
        is_counted = {BudgetScope.TENANT: tenant == whose, BudgetScope.KEY: key == whose}.get(per, True)
        counted += count if is_counted else 0
    if per is BudgetScope.AGENT and counted >= at_most:
        return tx.runs.dispatches.begun_of_agent(whose)
    return counted


def is_start(run: RunRecord) -> bool:
    """Return whether a claimed run starts, or resumes after a question about a budget.

    A retry does not count as a start.
    """
    waiting = run.waiting
    if waiting is None:
        return run.status is RunStatus.CREATED
    return all(ticket.tool_name == BUDGET_TOOL for ticket in waiting.tickets)


def missed_deadline(run: RunRecord, now: int) -> DeadlinePassed | None:
    """Return an error if a run missed its deadline while waiting for approval to start, or None."""
    deadline_at = None if run.activation is None else run.activation.delivery.deadline_at
    is_late = deadline_at is not None and deadline_at < now and run.started_at is None
    return deadline_passed(deadline_at) if is_late and run.status is RunStatus.WAITING else None


def late_asking(tx: Transaction) -> list[RunRecord]:
    """Return the runs that missed their deadline while waiting for approval to start."""
    asking = {item.asked_by for item in tx.runs.threads.asked()}
    runs = [tx.runs.threads.load_run(run_id) for run_id in sorted(asking)]
    return [run for run in runs if run is not None and missed_deadline(run, tx.now()) is not None]


def asks(runs: RunTables, spent: Spending) -> bool:
    """Return whether the run that asked about a scope's budget still waits for an answer."""
    run = runs.threads.load_run(spent.asked_by) if spent.asked_by else None
    if run is None or run.status is RunStatus.DONE:
        return False
    if question_about(run, spent.scope) is not None:
        return True
    row = runs.dispatches.load(run.dispatch_id or "")
    return row is not None and row.status is RunDispatchStatus.CLAIMED and row.run_id == run.run_id


def question_about(run: RunRecord, scope: str) -> RunWaitingTicket | None:
    """Return the open question of a run about the budget of a scope, or None."""
    return next((ticket for ticket in run.open_tickets if _budget_scope(ticket) == scope), None)


def held_threads(
    tx: Transaction, *, budgets: Budgets, thread_ids: Sequence[str], starting: Counter[str] | None = None
) -> tuple[list[tuple[str, Held]], list[str]]:
    """Return the threads that budgets hold, and the threads that wait for active runs of a budget.

    `starting` counts the starting runs of each scope.
    """
    items, crowded = [], []
    for dispatch in tx.runs.dispatches.first_due(thread_ids):
        run = tx.runs.threads.load_run(dispatch.run_id)
        if run is None or dispatch.deadline_at is not None:
            continue
        start = budgets.start(tx, dispatch, run, starting=starting, is_now=starting is None)
        if start.held is not None and start.holds_thread:
            items.append((dispatch.thread_id, start.held))
        elif start.held is not None:
            crowded.append(dispatch.thread_id)
    return items, crowded


def hold_threads(tx: Transaction, *, budgets: Budgets, thread_ids: Sequence[str]) -> int:
    """Store which threads are held by a budget; return the number of held threads."""
    tx.lock(*map(thread_lock, thread_ids), LIMITS)
    items, _ = held_threads(tx, budgets=budgets, thread_ids=thread_ids)
    for thread_id, held in items:
        tx.runs.dispatches.hold(thread_id, held.scope, held.until)
    return len(items)


def begin_to_ask(tx: Transaction, run_id: str, tickets: Sequence[RunWaitingTicket]) -> None:
    """Store that a run asks about budgets on behalf of all held runs."""
    for scope, until in {(facts["scope"], facts["until"]) for facts in map(_facts, tickets)}:
        tx.runs.threads.put_asker(scope, until, run_id)


def settle(tx: Transaction, run: RunRecord, answers: Sequence[AnsweredTicket]) -> None:
    """Apply answers to questions about budgets.

    An approval extends the budget by the full amount, and resumes all held runs.
    """
    for answered in answers:
        scope = _budget_scope(answered.ticket)
        if scope is None:
            continue
        facts, threads = _facts(answered.ticket), tx.runs.threads
        until, spent = facts.get("until"), threads.spending([scope])[scope]
        if answered.decision.approved:
            limits = facts.get("grant") or {facts["limit"]: facts["allowed"]}
            given_fields = {name: -max(limit, getattr(spent, name)) for name, limit in limits.items()}
            if question_about(run, scope) is None:
                # the asking run resumes, even if other runs start before it
                given_fields["runs"] = given_fields.get("runs", 0) + 1
                if spent.asked_by == run.run_id:
                    threads.put_asker(scope, until, "")
            threads.spend([_of(Spending(scope=scope, until=until), **given_fields)])
            tx.runs.dispatches.release_held(scope, until)
        elif until is not None:
            threads.put_asker(scope, until, "", is_refused=True)


def answers_budget(call_ids: Sequence[str]) -> bool:
    """Return whether a decision may answer a question about a budget."""
    return any(call_id.startswith(f"{BUDGET_TOOL}/") for call_id in call_ids)


def window_ended(scope: str, *, now: int) -> ToolCallResume:
    """Return the decision that closes a question about a budget whose window has ended."""
    return ToolCallResume(
        decision_id=f"{MAILBOX}/{scope}/window-ended",
        action=ResumeDecisionAction.RESUME,
        result={"approved": True},
        reason="the next window has started",
        updated_at=now,
        by=MAILBOX,
    )


async def release_abandoned(store: SqlStore) -> None:
    """Resume runs that a budget still holds after the end of the run that asked about the budget.

    Raises:
        StoreError: The runs could not be read or written.
    """

    def left(tx: Transaction) -> list[Spending]:
        return [spending for spending in tx.runs.threads.asked() if not asks(tx.runs, spending)]

    def release(tx: Transaction) -> None:
        tx.lock(LIMITS)
        for spending in left(tx):
            tx.runs.threads.put_asker(spending.scope, spending.until, "", is_refused=spending.is_refused)
            tx.runs.dispatches.release_held(spending.scope, spending.until)

    if await store.read(left):
        await store.write(release, key=LIMITS)


def _of(account: Spending, **spent: int) -> Spending:
    return replace(Spending(scope=account.scope, until=account.until), **spent)


def _costs(used: Usage, wall_ms: int) -> dict[str, int]:
    tokens = used.input_tokens + used.output_tokens
    return {"wall_ms": wall_ms, "tokens": tokens, "cost_micros": used.cost_micros}


def _ids(dispatch: RunDispatch, run: RunRecord) -> dict[BudgetScope, str]:
    return {
        BudgetScope.THREAD: dispatch.thread_id,
        BudgetScope.TENANT: dispatch.tenant,
        BudgetScope.KEY: dispatch.limit_key,
        BudgetScope.AGENT: run.agent_id,
        BudgetScope.ALL: "*",
    }


def _facts(ticket: RunWaitingTicket) -> dict[str, Any]:
    return ticket.arguments if isinstance(ticket.arguments, dict) else {}


def _budget_scope(ticket: RunWaitingTicket) -> str | None:
    return _facts(ticket).get("scope") if ticket.tool_name == BUDGET_TOOL else None


def _amount(limit: str, used: int) -> str:
    match limit:
        # whole seconds from one minute up, otherwise milliseconds, so that a small budget is not "0 of 0"
        case "wall_ms":
            return f"{used / 1_000:g}" if used < 60_000 else str(used // 1_000)
        case "cost_micros":
            cents, rest = divmod(used, 10_000)
            rest = rest if used < 1_000_000 else 0
            return f"{cents // 100}.{cents % 100:02d}" + (f"{rest:04d}".rstrip("0") if rest else "")
    return str(used)

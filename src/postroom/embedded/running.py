"""Executes runs as coroutine functions, which work in steps; a finished step is not repeated.

    started ─▶ step ─▶ ask ─▶ (waits without a worker) ─▶ started again: stored steps return at once ─▶ answer

The result of a step is stored as an event of its run, and only while the worker's claim is valid.
"""

import asyncio
import inspect
import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any, Final, TypeVar, cast

from postroom.concurrency import retried, unreported
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink, StreamReset, TextDelta
from postroom.contracts.clock import Clock, Duration, Timer, given_duration, milliseconds
from postroom.contracts.errors import (
    ConfigError,
    ExecutorMisbehaved,
    InvalidActivation,
    InvalidArgument,
    InvalidStep,
    PostroomError,
)
from postroom.contracts.events import (
    AppendOptions,
    CanonicalEvent,
    CanonicalEventDraft,
    EventScope,
    EventVisibility,
)
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
from postroom.contracts.limits import Spending
from postroom.contracts.messages import Json, Message
from postroom.contracts.questions import asked_for
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runs import (
    OnTimeout,
    RunWaitingState,
    RunWaitingTicket,
    TerminationReason,
    Usage,
    WaitingReason,
)
from postroom.contracts.tools import ToolCallResume, ToolCallResumeMode
from postroom.dispatch.sinks import TEXT
from postroom.embedded.items import (
    as_text,
    format_text,
    plain,
    read_data,
    refuse_other_id,
    refuse_other_text,
    refuse_other_type,
    to_milliseconds,
    typed,
)
from postroom.ports import RunControl
from postroom.stores.runs.ports import RunStores
from postroom.stores.store import Transaction, refuse_forked

STEP: Final = "StepStored"
LOGGED: Final = "Logged"
SPENT: Final = "CostStored"
"""The kind of event that records the usage of a failed execution outside its steps."""
ASK: Final = "ask"
SLEEP: Final = "sleep"
_WRITER: Final = "run"
_PAGE: Final = 500
_SHOWN_OF_QUESTION: Final = 40
"""Maximum number of characters of a question in the name of its step."""
_USES: Final = ("input_tokens", "output_tokens", "cost_micros")
"""The kinds of usage that a run can report."""
_MAX_USED: Final = 2**53
_LAST_INSTANT: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""

T = TypeVar("T")
Function = Callable[["Run"], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A person's answer to a question.

    `approved` is None for an answer that is neither an approval nor a rejection.
    """

    text: str
    approved: bool | None
    by: str = ""
    timed_out: bool = False
    """Whether the timeout passed without an answer.

    After a timeout, `text` is empty and `approved` is None, because silence never counts as approval.
    """
    choice: str = ""
    """The chosen answer, if the question had choices."""
    values: Mapping[str, Json] = field(default_factory=dict)
    """The fields of the form, if the question had one."""

    @classmethod
    def of(cls, decision: ToolCallResume) -> "Answer":
        """Convert a stored decision to an answer."""
        if isinstance(result := decision.result, dict) and (result.get("choice") or result.get("values")):
            choice, values = str(result.get("choice") or ""), result.get("values") or {}
            return cls(
                text=decision.reason or "", approved=None, by=decision.by, choice=choice, values=values
            )
        answer = decision.result.get("text") if isinstance(decision.result, dict) else decision.result
        text = answer if isinstance(answer, str) else decision.reason or ""
        return cls(text=text, approved=decision.approved, by=decision.by)


def is_awaited(work: object) -> bool:
    """Return whether a call of a function must be awaited."""
    return inspect.iscoroutinefunction(work) or inspect.iscoroutinefunction(
        getattr(type(work), "__call__", None)  # noqa: B004 - the object's `__call__` may be a coroutine function
    )


def refuse_no_parameter(work: object) -> None:
    """Raise an error for a function that cannot be called with a run as the only argument.

    Raises:
        ConfigError: The function requires other parameters.
    """
    try:
        inspect.signature(cast("Callable[..., object]", work)).bind(None)
    except ValueError:  # its parameters cannot be inspected
        return
    except TypeError as error:
        raise ConfigError(
            f"the function `work` must take one argument, the run: {error}",
            value=repr(work)[:80],
            remedy="write `async def work(run)`, or `def work(run)` for postroom.sync",
        ) from error


_STEP_USES: ContextVar[list[Usage] | None] = ContextVar("step_uses", default=None)
"""The usage that the step in this context has reported so far."""


class Suspended(BaseException):
    """Raised to end the function of a run that must wait.

    `except Exception` does not catch `Suspended`.
    """

    def __init__(self, ticket: RunWaitingTicket) -> None:
        super().__init__(ticket.reason)
        self.ticket = ticket


@dataclass(slots=True, kw_only=True)
class _Memory:
    """The results of a run's earlier executions, and the usage of the current execution."""

    steps: dict[str, Json]
    is_streamed: bool
    """Whether an earlier execution streamed text, which no longer belongs to the answer."""
    answers: Mapping[str, ToolCallResume]
    """The answers, keyed by the id of the tool call that asked."""
    waited: Mapping[str, RunWaitingTicket]
    """The questions that have been answered since the run last waited."""
    used: set[str] = field(default_factory=set)
    usage: Usage = field(default_factory=Usage)
    """The usage that is not yet in the run's record."""
    counted: Usage = field(default_factory=Usage)
    """The part of `usage` that budgets have already counted together with its steps."""
    unnamed: Counter[str] = field(default_factory=Counter)
    """The number of unnamed steps so far, keyed by kind."""
    is_suspended: bool = False
    """Whether the function was unwound because its run must wait."""


class Run:
    """A run, as the function that executes the run sees it."""

    def __init__(
        self,
        activation: RunActivation,
        control: RunControl,
        sink: EventSink,
        memory: _Memory,
        *,
        clock: Clock,
        timer: Timer,
    ) -> None:
        self.id = activation.run_id or ""
        self.thread_id = activation.thread_id
        self.agent_id = activation.agent_id or ""
        self.attempt = activation.attempt
        """The number of this attempt: the number of failed attempts plus 1."""
        self.interruptions = activation.interruptions
        """The number of executions that ended early because a server stopped or a lease was lost.

        Interruptions do not count as attempts.
        """
        self.messages: Sequence[Message] = activation.messages
        """The messages to answer, in order."""
        self._activation = activation
        self._control = control
        self._sink = sink
        self._memory = memory
        self._clock = clock
        self._timer = timer
        self._count = 0
        self._process = os.getpid()

    @property
    def text(self) -> str:
        """The text of the messages to answer, one message per line."""
        return "\n".join(map(format_text, self.messages))

    @property
    def data(self) -> Json:
        """The enqueued content as JSON-compatible data.

        If several messages were enqueued, the last message counts.
        """
        return read_data(self.messages[-1]) if self.messages else None

    def input(self, type: type[T]) -> T:
        """Return the enqueued content as a value of a type.

        Raises:
            InvalidArgument: The content is not a value of this type; the run fails with this error.
        """
        return typed(self.data, type, "the enqueued content")

    async def history(self) -> tuple[Message, ...]:
        """Return the earlier messages of the conversation, including the run's earlier questions."""
        requested_values, threads = {message.id for message in self.messages}, self._control.threads
        messages = await retried(lambda: threads.conversation(self.thread_id, self.id), self._timer)
        return tuple(
            message
            for message in messages
            if message.id not in requested_values and self._control.shows(message)
        )

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: object,
        attempts: int = 1,
        delay: Duration = 1,
        returns: Any = None,
        **kwargs: object,
    ) -> Any:
        """Call a function once per run, and return the result.

        A restarted run gets the stored result.

        The result is durable when the call returns. If the process crashes before the result is stored, the
        function is called again. With `returns`, the result is converted to a value of that type. A failing
        function is called up to `attempts` times. The pause before the second call is `delay` (seconds, or a
        timedelta), and doubles before each later call. The error of the last attempt is raised.

        Raises:
            InvalidStep: The name is blank, or was used in this run before.
            InvalidArgument: An argument has the wrong type or range, or the result cannot be stored. The run
                fails with it and is not retried, unless the function of the run catches it.
            StaleClaim: This worker no longer owns the run.
        """
        pause = given_duration(delay, "delay")
        _refuse_other_options(name, function, attempts, pause, returns)
        if self._has_result(name):
            value = self._memory.steps[name]
        else:
            uses: list[Usage] = []
            token = _STEP_USES.set(uses)
            try:
                result = await self._try_step(name, function, args, kwargs, attempts=attempts, delay=pause)
                value = plain(result, f"the result of step {name!r}")
            finally:
                _STEP_USES.reset(token)
                used = sum(uses, Usage())
                # usage of a failed step is counted when the execution ends
                self._memory.usage += used
            # Store the result of a step and count its usage in one commit.
            payload: dict[str, Json] = {"name": name, "value": value}
            if used != Usage():
                payload["used"] = {item: getattr(used, item) for item in _USES}
            await self._keep(STEP, name, payload, spends=self._control.spends(used))
            self._memory.counted += used
            if returns is None:
                return result
        return value if returns is None else typed(value, returns, f"the result of step {name!r}")

    async def ask(
        self,
        question: str,
        *,
        timeout: Duration | None = None,
        name: str | None = None,
        choices: Sequence[str] = (),
        form: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Ask a person, and return the answer.

        The run waits without occupying a worker. When the answer arrives, the function starts again from the
        beginning. Put work before the question into steps, so that the work is not repeated. A question is
        identified by its `name`, or by its text if `name` is None. If nobody answers within `timeout`, the
        answer has `timed_out` set, and later answers are refused. With `choices`, the answer must be one of
        the choices. With `form`, a flat JSON schema, the answer has `values` for the fields of the form.

        Raises:
            InvalidStep: The name is blank, or was used in this run before.
            InvalidArgument: The question is blank or not text, or the timeout is not a duration above 0.
        """
        refuse_other_text("the question", question)
        wanted = asked_for(choices=choices, form=form)
        if not question.strip():
            raise InvalidArgument(
                "the question must not be blank", value=question, remedy="pass the text of the question"
            )
        limit = None if timeout is None else given_duration(timeout, "the timeout of a question")
        if limit is not None and limit <= timedelta(0):
            raise InvalidArgument(
                "a question's timeout must be greater than 0",
                value=repr(timeout)[:80],
                remedy="leave out timeout to keep the question open without a limit",
            )
        if name is None:  # questions are not named by position, because concurrent ones have no fixed order
            words = "-".join(re.findall(r"\w+", question.lower()))[:_SHOWN_OF_QUESTION]
            name = self._number_name(f"{ASK}-{words}-{sha256(question.encode()).hexdigest()[:8]}")
        nobody = Answer(text="", approved=None, timed_out=True)
        if self._has_result(name):
            return nobody
        call_id, now = f"{self.id}/{name}", self._clock.now()
        decision = self._memory.answers.get(call_id)
        if decision is not None:
            return Answer.of(decision)
        before = self._memory.waited.get(call_id)
        if before is not None and before.goes_on(now):
            await self._keep(STEP, name, {"name": name, "value": {"timed_out": True}})
            return nobody
        until = before.expires_at if before is not None else None
        if until is None and limit is not None:
            until = _in_range(now + max(milliseconds(limit), 1), limit)
        raise self._suspend(
            RunWaitingTicket(
                ticket_id=call_id,
                tool_call_id=call_id,
                tool_name=ASK,
                arguments={"question": question},
                resume_mode=ToolCallResumeMode.PASS_DECISION_TO_TOOL,
                reason=question,
                updated_at=now,
                expires_at=until,
                on_timeout=OnTimeout.WAIT if until is None else OnTimeout.GO_ON,
                asked=wanted,
            )
        )

    async def sleep(self, until: Duration | datetime, *, name: str | None = None) -> None:
        """Wait for a duration or until a time, without occupying a worker.

        After the wait, the function starts again from the beginning. Put work before the wait into steps, so
        that the work is not repeated.

        Raises:
            InvalidStep: The name is blank, or was used in this run before.
            InvalidArgument: `until` is neither a duration nor a `datetime` with a time zone.
        """
        name = self._number_name(SLEEP) if name is None else name
        if self._has_result(name):
            return
        call_id, now = f"{self.id}/{name}", self._clock.now()
        before = self._memory.waited.get(call_id)
        wakes_at = before.expires_at if before is not None else None
        if wakes_at is None:
            if isinstance(until, datetime):
                wakes_at = to_milliseconds(until, "the time of sleep")
            else:
                span = given_duration(until, "until (unless it is a datetime)")
                wakes_at = _in_range(now + max(milliseconds(span), 0), span)
        is_set_back = not isinstance(until, datetime) and before is not None and before.updated_at > now
        if wakes_at <= now or is_set_back:  # the clock was set back after the queue had woken the run on time
            await self._keep(STEP, name, {"name": name, "value": None})
            return
        raise self._suspend(
            RunWaitingTicket(
                ticket_id=call_id,
                tool_call_id=call_id,
                tool_name=SLEEP,
                resume_mode=ToolCallResumeMode.PASS_DECISION_TO_TOOL,
                reason="sleeps",
                updated_at=now,
                expires_at=wakes_at,
            )
        )

    async def stream(self, text: str) -> None:
        """Send the next piece of the answer to all readers in all processes.

        The text is stored soon after the call.

        Raises:
            InvalidArgument: `text` is not text.
        """
        refuse_forked(self._process)
        if not isinstance(text, str):  # a lone surrogate is stored as `?`, like in program output
            raise InvalidArgument(
                f"the text to stream must be a str, not {type(text).__name__}",
                value=repr(text)[:80],
                remedy="pass a str: convert other data first",
            )
        await self._sink.emit(TextDelta(delta=text))

    async def log(self, text: str, **facts: object) -> None:
        """Write a line to the log of the run.

        The line is durable when the call returns.

        Raises:
            InvalidArgument: `text` is not text, or a fact cannot be stored.
            StaleClaim: This worker no longer owns the run.
        """
        refuse_other_text("the text to log", text)
        self._count += 1
        trace = self._activation.trace  # a released execution does not count as an attempt
        key = f"{trace.dispatch_id}/{trace.session_id}/{self._count}"
        await self._keep(LOGGED, key, {"text": text, **plain(facts, "a fact")})

    def used(self, *, input_tokens: int = 0, output_tokens: int = 0, cost_micros: int = 0) -> None:
        """Add to the usage of the run, which budgets count.

        `cost_micros` is in millionths of a US dollar.

        Usage that is reported within a step is stored with the step's result, and counts once. Usage that is
        reported outside steps, or in a failing step, counts once per execution.

        Raises:
            InvalidArgument: A number is not an integer, or is negative.
        """
        refuse_forked(self._process)
        for name, used in (
            ("input_tokens", input_tokens),
            ("output_tokens", output_tokens),
            ("cost_micros", cost_micros),
        ):
            if not isinstance(used, int) or isinstance(used, bool) or not 0 <= used <= _MAX_USED:
                raise InvalidArgument(
                    f"{name} must be an integer from 0 to 2**53",
                    value=repr(used)[:80],
                    remedy=f"leave out {name} if nothing was used",
                )
        usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens, cost_micros=cost_micros)
        if (uses := _STEP_USES.get()) is not None:
            uses.append(usage)
        else:
            self._memory.usage += usage

    def _suspend(self, ticket: RunWaitingTicket) -> Suspended:
        self._memory.is_suspended = True
        return Suspended(ticket)

    def _number_name(self, kind: str) -> str:
        self._memory.unnamed[kind] += 1
        return f"{kind}-{self._memory.unnamed[kind]}"

    def _has_result(self, name: str) -> bool:
        self._claim_name(name)
        return name in self._memory.steps

    def _claim_name(self, name: str) -> None:
        refuse_forked(self._process)
        refuse_other_id("the name of a step", name)
        if not name.strip():
            raise InvalidStep(
                "a step needs a name", value=name, remedy="pass a name that no other step of this run has"
            )
        if name in self._memory.used:
            raise InvalidStep(
                f"step {name!r} occurs twice in one run", value=name, remedy="give each step a different name"
            )
        self._memory.used.add(name)

    async def _try_step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        *,
        attempts: int,
        delay: timedelta,
    ) -> object:
        for left in range(attempts - 1, -1, -1):
            try:
                if inspect.iscoroutinefunction(function):
                    return await function(*args, **kwargs)
                value = await _on_a_thread(function, *args, **kwargs)
                return await value if inspect.isawaitable(value) else value
            except Exception as error:
                if not left or isinstance(error, self._control.give_up_on):
                    raise
                if isinstance(error, PostroomError) and not error.retryable:
                    raise
                tried = attempts - left
                await self.log(f"step {name} failed, attempt {tried} of {attempts}: {error}")
                await self._timer.sleep(milliseconds(delay) << (tried - 1))
        raise AssertionError("a step needs at least one attempt")

    async def _keep_spending(self) -> None:
        used = self._memory.usage.beyond(self._memory.counted)
        if spends := self._control.spends(used):
            trace = self._activation.trace
            payload: dict[str, Json] = {item: getattr(used, item) for item in _USES}
            await self._keep(SPENT, f"{trace.dispatch_id}/{trace.session_id}", payload, spends=spends)

    async def _keep(
        self, kind: str, key: str, payload: dict[str, Json], *, spends: tuple[Spending, ...] = ()
    ) -> None:
        draft = CanonicalEventDraft(
            scopes=(EventScope.thread(self.thread_id), EventScope.run(self.id)),
            event_kind=kind,
            payload=payload,
            correlation_id=self._activation.trace.dispatch_id,
            visibility=EventVisibility.INTERNAL,
            options=AppendOptions(writer_id=_WRITER, idempotency_key=f"{kind}/{self.id}/{key}"),
        )
        await self._control.store_output()  # store the earlier streamed text first
        commit = ThreadCommit(thread_id=self.thread_id, events=(draft,), spends=spends)
        await self._control.coordinator.commit(commit)


class FunctionExecutor(RunDispatchExecutor):
    """Executes each run by calling a coroutine function, whose result becomes the answer."""

    def __init__(self, function: Function, stores: RunStores, timer: Timer) -> None:
        self._function = function
        self._stores = stores
        self._timer = timer

    def can_pause(self, thread_id: str) -> bool:
        """Return True, because a function can pause between steps."""
        return True

    def commits_steps(self, thread_id: str) -> bool:
        """Return False, because the queue stores the result of the function."""
        return False

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Call the function with a run, and return the result.

        Raises:
            InvalidActivation: The run does not come from a mailbox.
            Exception: Any error that the function raises.
        """
        control = activation.control
        if not isinstance(control, RunControl) or activation.run_id is None:
            raise InvalidActivation("only a mailbox can start a function as a run", value=activation.run_id)
        run_id = activation.run_id
        activation, memory = await retried(partial(self._load_memory, activation, control), self._timer)
        if memory.is_streamed:
            await sink.emit(StreamReset(reason="the run starts again"))
        run = Run(activation, control, sink, memory, clock=self._stores.clock, timer=self._timer)
        try:
            try:
                returned = await self._function(run)
            except (Suspended, BaseExceptionGroup) as raised:
                ticket = _suspension(raised).ticket
                state = RunWaitingState(reason=_REASONS[ticket.tool_name], tickets=(ticket,))
                return AgentRunResult(
                    run_id=run_id,
                    termination=TerminationReason.suspended(),
                    waiting=state,
                    usage=memory.usage,
                    counted=memory.counted,
                )
        except Exception:
            await run._keep_spending()  # noqa: SLF001 - not part of the interface of functions
            raise
        if memory.is_suspended:
            raise ExecutorMisbehaved(
                "the work continued after a question or a sleep",
                value=run_id,
                remedy="do not catch the exceptions that `ask` and `sleep` raise: catch no BaseException "
                "around them",
            )
        return AgentRunResult(
            run_id=run_id,
            response=as_text(returned),
            steps=len(memory.used),
            usage=memory.usage,
            counted=memory.counted,
        )

    async def _load_memory(
        self, activation: RunActivation, control: RunControl
    ) -> tuple[RunActivation, _Memory]:
        run_id, steps = activation.run_id or "", dict[str, Json]()
        run, is_streamed, used = control.run, False, Usage()
        if run is not None and run.session_id != activation.trace.session_id:  # the run was started before
            steps, used, is_streamed = await self._steps(run_id)
            used = used.beyond(run.usage)  # add the usage of interrupted executions
            ids = run.input.trigger_message_ids if run.input is not None else ()
            records = await control.threads.load_message_records(run.thread_id, ids)
            activation = replace(activation, messages=tuple(record.message for record in records))
        answered_tickets = () if run is None else run.answered
        waiting = None if run is None else run.waiting
        answers = dict(activation.decisions)
        for answered in answered_tickets:
            answers[answered.ticket.tool_call_id] = answered.decision
        memory = _Memory(
            steps=steps,
            is_streamed=is_streamed,
            # The first answer to a question is used.
            answers=answers,
            waited={} if waiting is None else {ticket.tool_call_id: ticket for ticket in waiting.tickets},
            usage=used,
            counted=used,
        )
        return activation, memory

    async def _steps(self, run_id: str) -> tuple[dict[str, Json], Usage, bool]:
        scope, after = EventScope.run(run_id).key, 0
        steps: dict[str, Json] = {}
        used = Usage()

        def look(tx: Transaction) -> list[tuple[int, CanonicalEvent]]:
            return tx.events.of_scope(scope, after=after, limit=_PAGE, kinds=(STEP,))

        while page := await self._stores.store.read(look):
            steps |= {event.payload["name"]: event.payload["value"] for _, event in page}
            used = sum((Usage(**event.payload.get("used", {})) for _, event in page), used)
            after = page[-1][0]
        texts = await self._stores.store.read(
            lambda tx: tx.events.of_scope(scope, after=0, limit=1, kinds=(TEXT,))
        )
        return steps, used, bool(texts)


async def _on_a_thread(function: Callable[..., object], *args: object, **kwargs: object) -> object:
    call = partial(copy_context().run, function, *args, **kwargs)
    done = unreported(asyncio.get_running_loop().run_in_executor(None, call))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait({done})
        raise


def _suspension(raised: BaseException) -> Suspended:
    """Return the first suspension that a function raised.

    Raises:
        BaseException: An error that was raised together with the suspension; several errors form a group.
    """
    if isinstance(raised, Suspended):
        return raised
    leaves = list(_leaves(raised))
    failures = [leave for leave in leaves if not isinstance(leave, Suspended)]
    if len(failures) == 1:
        raise failures[0] from raised
    if failures:
        raise raised
    return cast("Suspended", leaves[0])


def _leaves(raised: BaseException) -> Iterator[BaseException]:
    if isinstance(raised, BaseExceptionGroup):
        for exception in raised.exceptions:
            yield from _leaves(exception)
    else:
        yield raised


_REASONS: Final = {ASK: WaitingReason.USER_INPUT, SLEEP: WaitingReason.EXTERNAL_EVENT}


def _refuse_other_options(
    name: object, function: object, attempts: int, delay: timedelta, returns: Any
) -> None:
    if not callable(function):
        raise InvalidArgument(
            f"the function for step {name!r} must be callable, not {type(function).__name__}",
            value=repr(function)[:80],
            remedy="pass the function, followed by its arguments: run.step(name, function, argument)",
        )
    if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
        raise InvalidArgument(
            "attempts must be an integer of at least 1",
            value=repr(attempts)[:80],
            remedy="leave out attempts to call the function once",
        )
    if delay < timedelta(0):
        raise InvalidArgument(
            "delay must be at least 0",
            value=repr(delay)[:80],
            remedy="leave out delay to wait 1 second before each retry",
        )
    if returns is not None:
        refuse_other_type("returns", returns)


def _in_range(instant: int, given: timedelta) -> int:
    """Return a time unchanged if a datetime can represent the time.

    Raises:
        InvalidArgument: The time is after the year 9999.
    """
    if instant > _LAST_INSTANT:
        raise InvalidArgument(
            f"a run cannot wait for {given}: that would end after the year 9999",
            value=repr(given)[:80],
            remedy="use a shorter time; to let a question wait without limit, leave out its timeout",
        )
    return instant

"""Executes a run in steps until the agent has finished, is stopped or cancelled, or must wait.

    begin ─▶ settle open questions ─▶ read pending messages ─▶ step ─▶ checkpoint ─┬─▶ … next step
                 ▲   └─ still open: Waiting, released                              ├─▶ a call asks: settle
                 └─────────────────────────────────────────────────────────────────┤
                                                                                   └─▶ answered: natural end

Each step is committed before the next one begins. After a crash, the run repeats the work since its last
checkpoint.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from postroom.contracts.agent_events import (
    EventSink,
    RunFinish,
    RunStart,
    StepEnd,
    StepStart,
    ToolCallCancel,
    ToolCallReady,
    ToolCallResumed,
)
from postroom.contracts.errors import ContextOverflow, RequestRefused
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.files import ChatFile
from postroom.contracts.inference import (
    CALLER_TOOLS,
    MISPLACED_RESULT,
    CallerRequest,
    InferenceRequest,
    InferenceResult,
    StopReason,
    with_context,
)
from postroom.contracts.messages import TASKS_UPDATED, Boundary, Message, MessageMetadata, Role, ToolCall
from postroom.contracts.records import replace
from postroom.contracts.runs import (
    RunRecord,
    RunStatus,
    RunWaitingState,
    RunWaitingTicket,
    TerminationKind,
    TerminationReason,
    Usage,
    WaitingReason,
)
from postroom.contracts.tools import ToolCallResume, ToolDescriptor, ToolResult, ToolStatus
from postroom.ports import RunControl
from postroom.runtime.agents import merged
from postroom.runtime.calls import (
    Answers,
    CallRequest,
    decided,
    given_up,
    serializable,
    settled_by,
    ticket_for,
    waiting_for,
    waits,
)
from postroom.runtime.checkpoint import (
    Change,
    RuntimeState,
    as_seen_by_model,
    by_call,
    earlier_answers,
    foreign_result,
    has_input_after,
    is_output_of,
    list_open_calls,
    read_state,
    running,
)
from postroom.runtime.compaction import Compacted, Compaction, shown
from postroom.runtime.files import MAX_WORDS, with_files
from postroom.runtime.interrupting import Interrupted
from postroom.runtime.model_call import PartialAnswer, ask, with_call_ids
from postroom.runtime.step_context import StepContext

_MAX_COMPACTIONS = 6
"""Maximum number of summaries in one step, if the model rejects the conversation as too long.

Each summary halves the conversation.
"""
NOTHING_TO_COMPACT = "There is no earlier conversation to compact yet."


class Execution:
    """Executes a run of an agent until the run ends or waits."""

    def __init__(self, context: StepContext) -> None:
        self._with = context
        self._log = context.log
        self._active = context.active
        self._sink = context.sink
        self._tickets: dict[str, RunWaitingTicket] = {}
        self._steps = 0
        self._usage = Usage()
        self._compaction = Compaction(
            context.agent, context.log, context.windows, context.active.stop, context.clock
        )
        self._told = ""
        """A notice that people see after the answer."""
        self._said = ""
        self._is_cut = False
        """Whether the model's last answer was cut off at its token limit."""
        self._since = context.clock.now()

    async def run(self) -> AgentRunResult:
        """Execute the run, and return either the final result or the questions that the run asks.

        Raises:
            InferenceError: The model failed, and the run stays in the state of its last checkpoint.
            StaleClaim: The worker has lost the run.
            StoreError: A checkpoint could not be written.
        """
        try:
            identity, log = self._active.identity, self._log
            await self._sink.emit(
                RunStart(
                    thread_id=identity.thread_id,
                    run_id=identity.run_id,
                    parent_run_id=identity.parent_run_id,
                    identity=identity,
                )
            )
            self._tickets = by_call(log.state.tickets)
            self._active.expect(self._asked_ids())
            waited = log.record.status is RunStatus.WAITING
            for message in reversed(log.messages):
                if is_output_of(message, log.run_id):
                    break
                if message.text() == TASKS_UPDATED:
                    log.keep(self._with.tasks.orphans(log.state.tasks))
                    log.state = replace(log.state, tasks=())
                    break
            if log.record.status is not RunStatus.RUNNING or log.state != read_state(log.record):
                await self._checkpoint(running)
            if waited:
                await self._with.read(Boundary.RESUME_INPUT)
            return await self._go_on()
        except Interrupted as asked:
            self._with.tasks.abandon(self._log.run_id)
            await self._with.put_down()
            return await self._end(asked.reason)

    async def _go_on(self) -> AgentRunResult:
        decisions = dict(self._with.activation.decisions)
        if any(message.asks_to_compact for message in self._with.activation.messages):
            # Execute `/compact`, and end the run.
            compacted = await self._compaction.now()
            if compacted is not None:
                self._count(self._with.agent.spec.add_cost(compacted.usage, None))
            self._said = NOTHING_TO_COMPACT if compacted is None else compacted.told
            return await self._end(TerminationReason.natural_end())
        if self._with.agent.spec.commits_calls:
            # Make the committed tool calls that have no answer because of a crash.
            left = list_open_calls(self._log.messages, self._log.run_id)
            if calls := [call for call in left if call.id not in self._tickets]:
                await self._make_anew(calls)
        while True:
            if self._tickets and (result := await self._settle(decisions)):
                return result
            decisions = {}
            if (answer := self._log.answer()) is None:
                await self._with.read(Boundary.NEXT_STEP)
                spec, used = self._with.agent.spec, self._log.used()
                over = None
                if self._steps >= spec.max_rounds:
                    over = "max_rounds"
                elif (
                    spec.token_budget is not None
                    and used.input_tokens + used.output_tokens >= spec.token_budget
                ):
                    over = "token_budget"
                if over:
                    raise Interrupted(TerminationReason(type=TerminationKind.STOPPED, value=over))
                await self._step()
                continue
            # The model has answered, so the run ends, unless a message or a background task continues it.
            self._said = answer.text() + self._told
            identity = self._active.identity
            ended = TerminationReason.cut_off() if self._is_cut else TerminationReason.natural_end()
            while not await self._with.read(Boundary.ON_NATURAL_END):
                begun = self._with.tasks.running(run_id=identity.run_id)
                if begun and identity.parent_run_id is not None:
                    await self._active.stop.run(lambda: self._active.stir(self._with.timer))
                elif begun:
                    waiting = RunWaitingState(
                        reason=WaitingReason.BACKGROUND_TASKS, since_dispatch_id=identity.dispatch_id
                    )
                    await self._checkpoint(partial(waits, waiting=waiting))
                    if self._active.close():
                        return await self._finish(ended)
                elif self._active.close():
                    return await self._end(ended)
            if earlier_answers(self._log.messages, self._log.run_id):
                self._said = ""

    async def _step(self) -> None:
        await self._note(await self._compaction.when_full(self._request()))
        message_id = self._with.new_id()
        await self._sink.emit(StepStart(message_id=message_id))
        partial = PartialAnswer(self._sink)
        tries, result = _MAX_COMPACTIONS, None
        try:
            while result is None:
                try:
                    result = await self._active.stop.run(lambda: self._asked_model(partial))
                except (ContextOverflow, RequestRefused) as error:
                    compacted = None if tries <= 0 else await self._compaction.after(self._request(), error)
                    if compacted is None:
                        raise
                    tries = tries - 1 if isinstance(error, ContextOverflow) else 0
                    await self._note(compacted)
        except Interrupted:
            if partial.text:  # people have seen this text, so the model must know it
                self._said = partial.text
                metadata = replace(self._metadata(), is_stopped=True)
                cut = replace(Message.assistant(partial.text), id=message_id, metadata=metadata)
                self._log.keep([cut], as_output=True)
            raise
        self._steps += 1
        self._log.steps += 1
        self._count(result.usage or Usage())  # the cost was added to the usage when the answer arrived
        self._is_cut = result.stop_reason is StopReason.MAX_TOKENS
        message = Message(
            role=Role.ASSISTANT,
            content=result.content,
            id=message_id,
            tool_calls=result.tool_calls,
            metadata=self._metadata(),
        )
        self._said = message.text() or self._said
        self._log.keep([message], as_output=True)
        for call in result.tool_calls:
            await self._sink.emit(ToolCallReady(id=call.id, name=call.name, arguments=call.arguments))
        if result.tool_calls and self._with.agent.spec.commits_calls:
            await self._checkpoint(running)
        await self._make_anew(result.tool_calls)
        await self._sink.emit(StepEnd())

    async def _make_anew(self, calls: Sequence[ToolCall]) -> None:
        theirs = {tool.name for tool in self._caller_tools()}
        ours = [call for call in calls if call.name not in theirs]
        await self._make(ours, [CallRequest(call=call) for call in ours], Answers())
        if not self._tickets and (tool_calls := [call for call in calls if call.name in theirs]):
            detail = msgspec.json.encode(tool_calls).decode()
            raise Interrupted(
                TerminationReason(type=TerminationKind.BEHAVIOR_REQUESTED, value=CALLER_TOOLS, detail=detail)
            )
        await self._checkpoint(self._waiting_on_tickets() if self._tickets else running)

    async def _note(self, compacted: Compacted | None) -> None:
        if compacted is None:
            return
        self._count(self._with.agent.spec.add_cost(compacted.usage, None))
        if compacted.left_out:
            self._told = f"\n\n({compacted.told})"

    def _count(self, usage: Usage) -> None:
        self._log.spent += usage
        self._usage += usage

    def _caller_tools(self) -> tuple[ToolDescriptor, ...]:
        caller_request = CallerRequest.newest(self._log.messages)
        return tuple(tool for tool in caller_request.tools if tool.name not in self._with.calls.tools)

    def _request(self) -> InferenceRequest:
        spec, caller_request = self._with.agent.spec, CallerRequest.newest(self._log.messages)
        if (call_id := foreign_result(self._log.messages)) is not None:
            raise RequestRefused(f"{MISPLACED_RESULT} {call_id[:100]!r}: send it directly after its call")
        own = merged(spec.overrides, self._with.activation.options.overrides)
        return InferenceRequest(
            model=spec.model,
            messages=(*shown(self._log.summary), *as_seen_by_model(with_context(self._log.messages))),
            system="\n\n".join(filter(None, (spec.system_prompt, caller_request.instructions))),
            tools=(*self._with.calls.descriptors(), *self._caller_tools()),
            overrides=merged(own, caller_request.overrides),
        )

    async def _asked_model(self, sink: EventSink) -> InferenceResult:
        request, control = self._request(), self._with.activation.control
        files = control.files if isinstance(control, RunControl) else None
        inference_request, sent = request, tuple[ChatFile, ...]()
        if files is not None:
            messages, sent = await with_files(request.messages, files, most_words=self._most_words())
            inference_request = replace(request, messages=messages)
        try:
            result = await ask(self._with.agent.model, inference_request, sink, self._with.clock)
        except RequestRefused as error:
            if files is None or not sent:
                raise
            # Repeat the request without its files. If this succeeds, the files in the newest message
            # caused the rejection, because earlier files had been accepted.
            named, _ = await with_files(
                request.messages, files, most_words=self._most_words(), takes_parts=False
            )
            without_files = replace(request, messages=named)
            result = await ask(self._with.agent.model, without_files, sink, self._with.clock)
            for file in sent:
                if file.message_id == sent[0].message_id:
                    await files.not_taken(file, f"the model rejects it: {error.message}")
        if inference_request.messages == request.messages:  # the size of files cannot be estimated
            self._with.windows.count(self._with.agent.spec, request, result.usage)
        priced = self._with.agent.spec.add_cost(result.usage or Usage(), request.overrides)
        result = replace(result, usage=priced)
        taken = [call.id for message in self._log.messages for call in message.tool_calls]
        return with_call_ids(result, self._with.new_id, taken=taken)

    def _most_words(self) -> int:
        window = self._with.windows.of(self._with.agent.spec, self._log.summary)
        return MAX_WORDS if window is None else min(window, MAX_WORDS)

    def _metadata(self) -> MessageMetadata:
        return MessageMetadata(
            run_id=self._log.run_id,
            step_index=self._log.record.steps + self._log.steps,
            sender_agent_id=self._active.identity.agent_id,
        )

    async def _make(
        self, calls: Sequence[ToolCall], requests: Sequence[CallRequest], answers: Answers
    ) -> None:
        if not calls:
            return
        self._active.expect([*self._asked_ids(), *(call.id for call in calls)])
        metadata = self._metadata()
        try:
            await self._active.stop.run(lambda: self._with.calls.make(requests, answers))
        except Interrupted:
            for call in calls:
                if call.id not in answers.results:
                    answers.results[call.id] = given_up(call)
                    await self._with.calls.tell(call, answers.results[call.id], answers)
            raise
        finally:
            self._log.keep(answers.messages(calls, metadata), as_output=True)
        for call in calls:
            if (result := answers.results[call.id]).status is ToolStatus.PENDING:
                self._tickets[call.id] = ticket_for(call, result, now=self._with.clock.now())
        self._active.expect(self._asked_ids())

    def _asked_ids(self) -> list[str]:
        return [id for ticket in self._tickets.values() for id in (ticket.tool_call_id, ticket.ticket_id)]

    async def _settle(self, given: Mapping[str, ToolCallResume]) -> AgentRunResult | None:
        may_hold = self._with.hold_ms > 0
        decisions = dict(given)
        while self._tickets:
            self._active.stop.check()
            settled = decided(self._tickets, {**self._active.take_decisions(), **decisions})
            if settled and self._log.record.status is not RunStatus.RUNNING:
                await self._checkpoint(running)  # after a crash from here on, the run is executed again
            answers, calls, requests = Answers(), [], []
            for ticket, decision in settled:
                del self._tickets[ticket.tool_call_id]
                call, outcome = settled_by(decision, ticket)
                calls.append(call)
                await self._sink.emit(ToolCallResumed(target_id=call.id, result=decision.result))
                if isinstance(outcome, ToolResult):
                    answers.results[call.id] = serializable(outcome)
                    await self._with.calls.tell(call, answers.results[call.id], answers)
                else:
                    requests.append(outcome)
            await self._make(calls, requests, answers)
            decisions = {}
            # Drop the questions that precede new input, because new input takes precedence over an answer.
            for call_id, ticket in list(self._tickets.items()):
                if has_input_after(self._log.messages, call_id):
                    del self._tickets[call_id]
                    reason = "superseded by new input"
                    await self._sink.emit(ToolCallCancel(id=call_id, name=ticket.tool_name, reason=reason))
            self._active.expect(self._asked_ids())
            if not self._tickets:
                break
            waiting = self._log.record.waiting
            tickets = waiting.tickets if waiting else ()
            if tickets != tuple(self._tickets.values()) or self._log.has_new:
                await self._checkpoint(self._waiting_on_tickets())
            if await self._with.read(Boundary.NEXT_STEP):
                continue
            if may_hold:
                may_hold = False
                await self._active.stop.run(lambda: self._active.stir(self._with.timer, self._with.hold_ms))
            elif self._active.close():
                return await self._finish(TerminationReason.suspended())
        if self._log.record.status is not RunStatus.RUNNING or self._log.has_new:
            await self._checkpoint(running)
        return None

    def _waiting_on_tickets(self) -> Change:
        waiting = waiting_for(
            tuple(self._tickets.values()), self._active.identity.dispatch_id, said=self._said
        )
        return partial(waits, waiting=waiting)

    async def _end(self, termination: TerminationReason) -> AgentRunResult:
        self._tickets = {}
        self._log.state = RuntimeState(run_id=self._log.run_id)
        now = self._with.clock.now()

        # An earlier answer is delivered together with the last one, because nothing else delivers it.
        earlier = earlier_answers(self._log.messages, self._log.run_id)
        self._said = "\n\n".join(filter(None, (*earlier, self._said)))

        def ended(record: RunRecord) -> RunRecord:
            done = record.ended(termination, now=max(now, record.updated_at))
            return replace(done, final_output=self._said or done.final_output)

        await self._checkpoint(ended)
        return await self._finish(termination)

    async def _checkpoint(self, change: Change) -> None:
        log, now = self._log, self._with.clock.now()
        wall = Usage(wall_ms=max(now - self._since, 0))
        self._since = now
        self._usage += wall
        log.spent += wall
        notes = (note for note in log.state.tasks if note.instance != self._with.tasks.instance)
        log.state = replace(
            log.state,
            tickets=tuple(self._tickets.values()),
            tasks=(*notes, *self._with.tasks.notes(log.run_id)),
        )
        await log.write(change)

    async def _finish(self, termination: TerminationReason) -> AgentRunResult:
        record, identity = self._log.record, self._active.identity
        await self._sink.emit(
            RunFinish(
                thread_id=identity.thread_id,
                run_id=identity.run_id,
                termination=termination,
                result={"response": self._said, "status": record.status, "status_reason": termination.value},
                identity=identity,
            )
        )
        return AgentRunResult(
            run_id=identity.run_id,
            response=self._said,
            termination=termination,
            steps=self._steps,
            usage=self._usage,
            counted=self._log.counted,
            waiting=record.waiting,
        )

"""Executes agents that use the Agent Client Protocol; each run is one process and one turn.

The result of the conversation is an answer, a question for a person, or a failure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from postroom.contracts.activation import RunActivation
from postroom.contracts.client_programs import ClientProgram
from postroom.contracts.errors import AgentProtocolBroken, AgentStopped
from postroom.contracts.executor import AccessOf, AgentRunResult
from postroom.contracts.messages import storable
from postroom.contracts.runners import Runner, RunnerKind, Runners
from postroom.contracts.runs import RunWaitingState, RunWaitingTicket, TerminationReason, WaitingReason
from postroom.executors.acp.conversation import (
    PROTOCOL,
    Brief,
    Conversation,
    Decisions,
    UsedPermissions,
)
from postroom.executors.clients import CLIENTS
from postroom.executors.processes.active import StopReason
from postroom.executors.processes.executor import (
    Failing,
    LastWords,
    ProgramExecutor,
    Sessions,
    no_server,
    nothing_more,
)
from postroom.executors.processes.output import ERRORS_KEPT, Tail
from postroom.executors.processes.process_runner import Launch, ProcessRunner, Program, ProgramEnd, Work
from postroom.executors.requests import build_prompt

TOOL: Final = "permission"
DONE: Final = "end_turn"
MAX_NAMES_SHOWN: Final = 80
"""Maximum number of characters of the agent's own text in an error."""
_STOPS: Final = {
    "max_tokens": "the agent reached its token limit",
    "max_turn_requests": "the agent reached its limit of model requests",
    "refusal": "the agent refused to continue",
    "cancelled": "the agent reported that its turn was cancelled, but postroom had not cancelled it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of an ended program and the conversation with the program."""

    program: str
    runner: Runner
    ended: ProgramEnd
    talk: Conversation
    errors: Tail
    now: int
    environment: Mapping[str, str] = field(repr=False)

    @property
    def is_kept(self) -> bool:
        """Whether the agent may resume the program's session in a later run."""
        return self.talk.asked is not None or self.ended.stopped is not StopReason.CANCELLED

    @property
    def failing(self) -> Failing:
        """The errors for a program that failed."""
        return Failing(
            program=self.program,
            runner=self.runner,
            taken=self.ended.taken,
            environment=self.environment,
            said=self.talk.fault.words if self.talk.fault else None,
            tails=(self.errors, self.talk.noise),
        )

    def result(self, activation: RunActivation) -> AgentRunResult:
        """Return the final result of the run, or the questions that the run asks.

        Raises:
            CommandError: The program failed; the error's class and `retryable` give details.
        """
        run_id, talk, ended = activation.run_id or "", self.talk, self.ended
        fault, failing = talk.fault, self.failing
        if ended.left:
            raise failing.left(ended)
        if ended.stopped is StopReason.CANCELLED:
            return AgentRunResult(run_id=run_id, termination=TerminationReason.cancelled(), usage=talk.usage)
        text = talk.turn.said.text()
        if talk.asked is not None:
            ticket = RunWaitingTicket(
                ticket_id=talk.asked.id,
                tool_call_id=talk.asked.id,
                tool_name=TOOL,
                reason=talk.asked.text,
                updated_at=self.now,
            )
            return AgentRunResult(
                run_id=run_id,
                response=text,
                steps=1,
                usage=talk.usage,
                termination=TerminationReason.suspended(),
                waiting=RunWaitingState(
                    reason=WaitingReason.TOOL_PERMISSION, tickets=(ticket,), message=text or None
                ),
            )
        if talk.stop_reason != DONE:
            if ended.stopped not in (None, StopReason.DONE):
                raise failing.stopped(ended.stopped)
            if fault is not None:
                raise failing.by(fault.kind, f"{fault.what}{failing.words}")
            if talk.stop_reason is not None:
                why = _STOPS.get(talk.stop_reason, "the agent gave an unknown reason")
                named = storable(talk.stop_reason[:MAX_NAMES_SHOWN])
                last = failing.quoted(None, talk.turn.said) or " nothing"
                what = f"stopped early: {why} ({named}); its last text{last}"
                raise failing.by(AgentStopped, what, value=named)
            if ended.code != 0:
                raise failing.exited(ended.code)
            raise failing.by(AgentProtocolBroken, f"ended before it answered {talk.stage!r}{failing.words}")
        return AgentRunResult(run_id=run_id, response=text, steps=1, usage=talk.usage)

    def last_words(self) -> LastWords:
        """Return the program's last output, together with output that violated the protocol."""
        fault, talk = self.talk.fault, self.talk
        words = (fault.what, fault.words) if fault else ()
        is_broken = fault is not None and fault.kind is AgentProtocolBroken
        return LastWords(
            words="\n".join((*words, self.errors.plain(), talk.noise.plain(), talk.turn.said.plain())),
            version=talk.version,
            expected=f"version {PROTOCOL} of the Agent Client Protocol",
            found=f"it {fault.what}" if fault and is_broken else "",
        )


KEY: Final = "postroom.executors.acp"


class AcpExecutor(ProgramExecutor):
    """Executes runs with programs that use the Agent Client Protocol.

    At a permission request, the run waits for a person's decision, and then resumes the session if possible.
    """

    kind = RunnerKind.ACP

    def __init__(
        self,
        runners: Runners,
        process_runner: ProcessRunner,
        *,
        environment_of: Callable[[RunActivation], Mapping[str, str]] = nothing_more,
        access_of: AccessOf = no_server,
    ) -> None:
        super().__init__(
            runners, process_runner, name="acp executor", environment_of=environment_of, access_of=access_of
        )

    async def _attempt(self, work: Work) -> Outcome | None:
        runner = work.runner
        client = CLIENTS[runner.recipe]
        program = Program(self.process_runner, work, client.variables)
        if client.acp.connects_by_settings:
            await program.connect(client)
        run_id = work.active.identity.run_id
        former = await self._sessions(work).former(of_run=None if runner.resume else run_id)
        prompt = build_prompt(work.activation)
        # The earlier prompts of a resumed run, which an agent with a new session does not know.
        if work.activation.continue_run_id is None:
            asked_before = []
        else:
            control, thread_id = work.control, work.active.identity.thread_id
            run = await control.threads.load_run(work.active.identity.run_id)
            message_ids = {message.id for message in work.activation.messages}
            ids = run.input.trigger_message_ids if run is not None and run.input is not None else ()
            new = [id for id in ids if id not in message_ids]
            records = await control.threads.load_message_records(thread_id, new) if new else ()
            texts = (record.message.text() for record in records if control.shows(record.message))
            asked_before = [storable(text) for text in texts if text.strip()]
        anew = "\n\n".join((*asked_before, prompt))
        used = UsedPermissions(control=work.control, thread_id=work.active.identity.thread_id, run_id=run_id)
        decisions = Decisions(work.activation.decisions, used=await used.all())
        brief = Brief(acp=client.acp, prompt=prompt, anew=anew, former=former)
        talk = Conversation(self.process_runner, work, brief, decisions, used)
        launch = Launch(
            words=tuple(self.build_command(runner)),
            cwd=runner.cwd,
            environment=program.environment,
            stdin=None,
        )
        errors = Tail(ERRORS_KEPT)
        ended = await program.run(launch, talk, errors)
        if ended is None:
            return None
        return Outcome(
            program=launch.words[0],
            runner=runner,
            ended=ended,
            talk=talk,
            errors=errors,
            now=self.process_runner.clock.now(),
            environment=program.environment,
        )

    async def _keep(self, work: Work, finished: Outcome) -> None:
        is_paused = finished.talk.asked is not None
        if finished.is_kept and (work.runner.resume or is_paused):
            of_run = None if work.runner.resume else work.active.identity.run_id
            await self._sessions(work).keep(finished.talk.session, of_run=of_run)

    def build_command(self, runner: Runner) -> Sequence[str]:
        """Return the command of a runner, or the default command of the runner's recipe."""
        return runner.argv or CLIENTS[runner.recipe].acp.command

    def find_client(self, runner: Runner) -> ClientProgram | None:
        """Return the client program for the advice on failures, or None if the client is unknown."""
        client = CLIENTS[runner.recipe]
        return client.acp.program or client.program

    def _sessions(self, work: Work) -> Sessions:
        command = "\0".join(self.build_command(work.runner))
        return Sessions(
            control=work.control,
            thread_id=work.active.identity.thread_id,
            agent_id=work.active.identity.agent_id,
            key=KEY,
            per=work.runner.session_per,
            made_with=(sha256(storable(command).encode()).hexdigest(), work.runner.cwd),
        )

"""The executor of agents that speak the Agent Client Protocol: one process a run, one turn of its session."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Final

from postroom.contracts.activation import RunActivation
from postroom.contracts.messages import storable
from postroom.contracts.runner_fields import RunnerKind
from postroom.contracts.runners import Recipe, Runner, Runners
from postroom.executors.acp.conversation import Brief, Conversation
from postroom.executors.acp.outcome import Outcome
from postroom.executors.acp.permissions import Decisions
from postroom.executors.acp.used import UsedPermissions
from postroom.executors.activations import prompt_of
from postroom.executors.processes.child_environment import secrets_in
from postroom.executors.processes.executor import ProgramExecutor, nothing_more
from postroom.executors.processes.limits import ERRORS_KEPT
from postroom.executors.processes.output import Tail
from postroom.executors.processes.process_runner import ProcessRunner, Program, Work
from postroom.executors.processes.sessions import Sessions
from postroom.executors.processes.starting import Launch

KEY: Final = "postroom.executors.acp"
COMMANDS: Final[Mapping[Recipe, tuple[str, ...]]] = {
    Recipe.CLAUDE: ("claude-agent-acp",),
    Recipe.CODEX: ("codex-acp",),
    Recipe.GEMINI: ("gemini", "--acp"),
    Recipe.OPENCODE: ("opencode", "acp"),
}
"""As their makers document them; they were not run."""


class AcpExecutor(ProgramExecutor):
    """Runs each agent by the program that its runner names, and speaks to it over its input and output.

    A request for a permission ends the turn: the run waits for a person, and goes on when they have answered,
    with the agent's session where that can be restored. Nothing is allowed by silence.
    """

    kind = RunnerKind.ACP

    def __init__(
        self,
        runners: Runners,
        process_runner: ProcessRunner,
        *,
        environment_of: Callable[[RunActivation], Mapping[str, str]] = nothing_more,
    ) -> None:
        """Keep what it works with; nothing is started or written."""
        super().__init__(runners, process_runner, name="acp executor", environment_of=environment_of)

    async def _attempted(self, work: Work) -> Outcome | None:
        program, runner = Program(self._with, work), work.runner
        run_id = work.active.identity.run_id
        former = await self._sessions(work).former(of_run=None if runner.resume else run_id)
        prompt = prompt_of(work.activation)
        anew = "\n\n".join((*await _asked_before(work), prompt))
        used = UsedPermissions(control=work.control, thread_id=work.active.identity.thread_id, run_id=run_id)
        decisions = Decisions(work.activation.decisions, used=await used.all())
        brief = Brief(prompt=prompt, anew=anew, former=former)
        talk = Conversation(self._with, work, brief, decisions, used)
        launch = Launch(
            words=tuple(self.words_of(runner)),
            cwd=runner.cwd,
            environment=program.environment,
            reads=lambda _: subprocess.PIPE,
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
            now=self._with.clock.now(),
            secrets=secrets_in(program.environment),
        )

    async def _keep(self, work: Work, finished: Outcome) -> None:
        is_paused = finished.talk.asked is not None
        if finished.is_kept and (work.runner.resume or is_paused):
            of_run = None if work.runner.resume else work.active.identity.run_id
            await self._sessions(work).keep(finished.talk.session, of_run=of_run)

    def words_of(self, runner: Runner) -> Sequence[str]:
        """Return the runner's command, or its recipe's."""
        return runner.argv or COMMANDS[runner.recipe]

    def _sessions(self, work: Work) -> Sessions:
        command = "\0".join(self.words_of(work.runner))
        return Sessions(
            control=work.control,
            thread_id=work.active.identity.thread_id,
            agent_id=work.active.identity.agent_id,
            key=KEY,
            made_with=(sha256(storable(command).encode()).hexdigest(), work.runner.cwd),
        )


async def _asked_before(work: Work) -> list[str]:
    """Return what a run that goes on was asked when it began: without its session an agent does not know."""
    if work.activation.continue_run_id is None:
        return []
    control, thread_id = work.control, work.active.identity.thread_id
    run = await control.threads.load_run(work.active.identity.run_id)
    told = {message.id for message in work.activation.messages}
    ids = run.input.trigger_message_ids if run is not None and run.input is not None else ()
    new = [id for id in ids if id not in told]
    records = await control.threads.load_message_records(thread_id, new) if new else ()
    texts = (record.message.text() for record in records if control.shows(record.message))
    return [storable(text) for text in texts if text.strip()]

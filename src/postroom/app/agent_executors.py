"""What executes an agent's runs, chosen by the kind of its runner."""

from collections.abc import Iterator, Mapping

from postroom.contracts.activation import RunActivation
from postroom.contracts.errors import InvalidRunner, RunnerNotFound, RunnerSecretMissing
from postroom.contracts.executor import RunDispatchExecutor
from postroom.contracts.runner_fields import RunnerKind
from postroom.contracts.runners import AnyRunner, Runners
from postroom.dispatch.routing import SeveralExecutors


class ExecutorsByRunner(SeveralExecutors):
    """Asks how the agent of a run is run, and has the executor of that kind run it."""

    def __init__(self, runners: Runners, by_kind: Mapping[RunnerKind, RunDispatchExecutor]) -> None:
        """Keep who knows the runners, and what executes each kind."""
        self._runners = runners
        self._by_kind = by_kind

    def check(self, runner: AnyRunner) -> None:
        """Refuse a runner of a kind that nothing here executes.

        Raises:
            InvalidRunner: it is of such a kind.
        """
        self._of(runner)

    async def chosen(self, activation: RunActivation) -> RunDispatchExecutor:
        """Return what executes an agent's run, as its runner says now.

        Raises:
            RunnerNotFound: nobody has said how this agent is run.
            InvalidRunner: its runner cannot be read, or nothing here executes that kind.
        """
        agent_id = activation.agent_id or "default"
        runner = await self._runners.runner_of(agent_id)
        if runner is None:
            raise RunnerNotFound(f"agent {agent_id!r} has no runner", value=agent_id)
        return self._of(runner)

    def each(self) -> Iterator[RunDispatchExecutor]:
        """Return the executors, each once."""
        return iter(dict.fromkeys(self._by_kind.values()))

    def _of(self, runner: AnyRunner) -> RunDispatchExecutor:
        executor = self._by_kind.get(runner.kind)
        if executor is None:
            raise InvalidRunner(
                f"this server runs no runners of the kind {runner.kind.value!r}",
                value=runner.kind.value,
                remedy=f"kinds that it runs: {', '.join(self._by_kind)}",
            )
        return executor


def secret_named(name: str, environment: Mapping[str, str]) -> str:
    """Return the key or secret that a variable of the server's environment holds.

    Raises:
        RunnerSecretMissing: it is not set, or blank.
    """
    secret = environment.get(name, "").strip()
    if not secret:
        raise RunnerSecretMissing(f"the variable {name} is not set for the server", value=name)
    return secret

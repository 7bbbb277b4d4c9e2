"""Executes runs on other servers; each run is posted to a server, which returns the result at once or later.

    post ─┬─▶ 200 with the result ─────────────────────────────▶ the run's end
          ├─▶ 202 ─▶ wait ─▶ the result is posted here ──▶ the run's end ─▶ the other server gets 200
          ├─▶ 5xx, 429, no connection: retried later
          └─▶ anything else: permanent failure

While the executor waits, the mailbox renews the lease. If this process ends, the other server keeps working.
The next process posts the same run under the same key, and gets the result.

Pure functions build and parse the messages between the two servers. Each request for a run, cancellation or
result states its kind and its dispatch, so that a signed message cannot be used as another.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from postroom.concurrency import SystemTimer, Tasks, within
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink, RunIdentity, RunStart
from postroom.contracts.clock import Clock, SystemClock, Timer, milliseconds
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import (
    AgentNotFound,
    InvalidActivation,
    InvalidArgument,
    InvalidRunner,
    MissingExtra,
    PostroomError,
    RemoteFailed,
    RemoteMisbehaved,
    RemoteRefused,
    RemoteTimedOut,
    RemoteUnavailable,
    ResultConflict,
    ResultTooEarly,
    RunnerNotFound,
    RunnerSecretMissing,
    StaleResult,
    ThreadAlreadyRunning,
    WrongSignature,
)
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor, build_identity
from postroom.contracts.messages import storable
from postroom.contracts.retrying import retry_after_ms
from postroom.contracts.runners import HttpRunner, Runners
from postroom.contracts.runs import RunRecord, TerminationKind, TerminationReason
from postroom.contracts.signing import Proof, signed, verify_signature
from postroom.executors.requests import build_prompt, without_files
from postroom.extras import install_command
from postroom.log import get_logger
from postroom.ports import RunEffects
from postroom.stores.runs.ports import DispatchStore

if TYPE_CHECKING:
    import httpx2


CALLBACKS: Final = "/callbacks"
"""The path below which results are posted; a sender is authenticated only by its signature."""
LARGEST_BODY: Final = 1 << 20
"""Maximum size in bytes of a result, in a response or a callback."""
_MAX_ERROR_LENGTH: Final = 2_000
_STOPPED: Final = (TerminationKind.CANCELLED, TerminationKind.ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run on another server: an answer, or the reason for a failure."""

    text: str = ""
    error: str | None = None

    def failure(self) -> RemoteFailed | None:
        """Return the failure in the result, or None if the result is an answer."""
        if self.error is None:
            return None
        return RemoteFailed(f"the other server reported: {self.error or 'it failed'}")


class _Told(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: Literal["result"]
    dispatch: str
    text: str | None = None
    error: str | None = None


def run_body(identity: RunIdentity, runner: HttpRunner, prompt: str, *, base: str | None) -> bytes:
    """Return the body of the request that starts a run on another server.

    `base` is this server's URL, or None if the other server cannot reach this server.
    """
    body = {
        "kind": "run",
        "dispatch": identity.dispatch_id,
        "run": identity.run_id,
        "thread": identity.thread_id,
        "agent": identity.agent_id,
        "prompt": prompt,
        "timeout_ms": milliseconds(runner.timeout),
        "callback": None if base is None else f"{base}{CALLBACKS}/{identity.dispatch_id}",
    }
    return msgspec.json.encode(body)


def cancel_body(identity: RunIdentity) -> bytes:
    """Return the body of the request that ends a run on another server."""
    return msgspec.json.encode({"kind": "cancel", "dispatch": identity.dispatch_id, "run": identity.run_id})


def parse_result(body: bytes, dispatch_id: str) -> Result:
    """Parse a request body as the result of a dispatch.

    Raises:
        InvalidArgument: The body is not a result, or belongs to another dispatch.
    """
    remedy = 'send {"kind": "result", "dispatch": ..., "text": ...}, or "error" instead of "text"'
    try:
        result = msgspec.json.decode(body, type=_Told)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"the body is not a valid result: {error}"[:300], remedy=remedy) from error
    if result.dispatch != dispatch_id:
        raise InvalidArgument(
            "the result belongs to another dispatch", value=result.dispatch[:200], remedy=remedy
        )
    if (result.text is None) == (result.error is None):
        raise InvalidArgument("a result needs either a text or an error", remedy=remedy)
    if result.error is not None:
        return Result(error=storable(result.error[:_MAX_ERROR_LENGTH]))
    return Result(text=storable(result.text or ""))


def judge(row: RunDispatch | None, result: Result) -> None:
    """Raise an error unless a late result repeats the stored result of a dispatch."""
    if row is None:
        raise StaleResult("this server does not know the run")
    if not row.status.is_terminal:
        raise ResultTooEarly("the run is not active at the moment", value=row.dispatch_id)
    failure = result.failure()
    if row.status is RunDispatchStatus.DEAD_LETTER:
        if failure is not None and row.last_error == storable(failure.describe()):
            return
        raise StaleResult("the run is a dead letter", value=row.dispatch_id)
    was_stopped = row.termination is not None and row.termination.type in _STOPPED
    if row.status is not RunDispatchStatus.ACKED or was_stopped:
        raise StaleResult("the run was cancelled or replaced", value=row.dispatch_id)
    if failure is not None or (row.run_response or "") != result.text:
        raise ResultConflict("the run has already ended with another result", value=row.dispatch_id)


IDEMPOTENCY_KEY: Final = "Idempotency-Key"
CONNECT_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = 60.0
"""The time that the other server may take to respond.

If a run takes longer, the server must respond with 202, and send a callback later.
"""
_PASSING: Final = frozenset({408, 425, 429})


class RemoteClient:
    """Posts requests to other servers over persistent connections."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._client: httpx2.AsyncClient | None = None

    async def post(self, url: str, body: bytes, *, secret: str, key: str | None = None) -> bytes | None:
        """Post a request, and return the body of a response with status 200, or None for status 202.

        Raises:
            MissingExtra: The HTTP client is not installed.
            RemoteUnavailable: The server is unreachable or cannot work now; it may have accepted the run.
            RemoteRefused, RemoteMisbehaved: The server rejected the run, or its response is invalid or too
                large.
        """
        import httpx2

        if self._client is None:
            # Creating a client reads the system's certificates, which blocks.
            made = await asyncio.to_thread(_client)
            self._client = self._client or made
        headers = {"Content-Type": "application/json", **signed(secret, body, now=self._clock.now())}
        headers |= {} if key is None else {IDEMPOTENCY_KEY: key}
        try:
            async with self._client.stream("POST", url, content=body, headers=headers) as answer:
                status = answer.status_code
                if status == 202:
                    return None
                if status == 200:
                    told = bytearray()
                    async for piece in answer.aiter_bytes():
                        told += piece
                        if len(told) > LARGEST_BODY:
                            raise RemoteMisbehaved(f"the other server's answer exceeds {LARGEST_BODY} bytes")
                    return bytes(told)
                if status >= 500 or status in _PASSING:
                    wait = retry_after_ms(answer.headers, now=self._clock.now())
                    text = f"the other server answered with status {status}"
                    raise RemoteUnavailable(text, value=status, retry_after_ms=wait)
                raise RemoteRefused(f"the other server answered with status {status}", value=status)
        except httpx2.RequestError as error:
            why = f"the other server did not answer: {type(error).__name__}"
            raise RemoteUnavailable(why) from error
        except httpx2.InvalidURL as error:
            raise RemoteRefused("the runner's `url` is not a valid URL") from error

    async def close(self) -> None:
        """Close all connections; a repeated call has no effect."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def check_installed() -> None:
    """Check that the HTTP client is installed.

    Raises:
        MissingExtra: The HTTP client is not installed.
    """
    try:
        import httpx2  # noqa: F401 - checks that it is installed
    except ImportError as error:
        raise MissingExtra(
            f"runners of the kind http require {error.name}, which is not installed",
            value=error.name,
            remedy=install_command("openai"),
        ) from error


def _client() -> "httpx2.AsyncClient":
    import httpx2

    # Ignore the environment, so that proxies and netrc entries cannot change the signed request.
    timeout = httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    return httpx2.AsyncClient(timeout=timeout, follow_redirects=False, trust_env=False)


_LOG = get_logger(__name__)
CANCEL_MS: Final = 5_000
"""The time limit of the request that asks the other server to end a run."""
STORE_MS: Final = 10_000
"""The time that the sender of a result waits until it is durable; then the sender must send the result again.
"""
_MARGIN_MS: Final = 1_000
Answer = Result | PostroomError | None
"""A result, a failure, or None if the other server accepted the run."""


class _Execution:
    def __init__(self, identity: RunIdentity, dispatch_id: str, secret: str) -> None:
        self.identity = identity
        self.dispatch_id = dispatch_id
        self.secret = secret
        self.result: Result | None = None
        self.cancelled = False
        self.is_used = False
        """Whether the received result has ended the run."""
        self.senders = 0
        """The number of requests that delivered a result and wait until it is durable."""
        self.stirred = asyncio.Event()
        self.ended = asyncio.Event()
        self.over = asyncio.Event()
        """An event that is set when the effect of the result is stored, so that there is no reason to wait.
        """

    def answers_to(self, id: str) -> bool:
        return id in (self.identity.run_id, self.identity.thread_id, self.dispatch_id)

    def cancel(self) -> bool:
        if self.result is not None or self.cancelled:
            return self.cancelled
        self.cancelled = True
        self.stirred.set()
        return True


class RemoteExecutor(RunDispatchExecutor, RunEffects):
    """Executes runs by sending them to the server that the agent's runner names.

    `secret_of` returns the secret of a runner. `agent_on` returns the agent of a thread. `address` returns
    this server's URL. The mailbox calls `stored` when the end of a run is durable.
    """

    def __init__(  # noqa: PLR0913 - its dependencies, by name
        self,
        runners: Runners,
        dispatches: DispatchStore,
        *,
        secret_of: Callable[[HttpRunner], Awaitable[str]],
        agent_on: Callable[[str], str | None],
        address: Callable[[], str],
        clock: Clock | None = None,
        timer: Timer | None = None,
    ) -> None:
        self._runners = runners
        self._dispatches = dispatches
        self._secret_of = secret_of
        self._agent_on = agent_on
        self._address = address
        self._clock = clock or SystemClock()
        self._timer = timer or SystemTimer()
        self._client = RemoteClient(self._clock)
        self._by_dispatch: dict[str, _Execution] = {}
        self._by_thread: dict[str, _Execution] = {}

    @property
    def executing(self) -> int:
        """The number of active runs on other servers."""
        return len(self._by_thread)

    # Runs.

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Execute a run on another server, and return the answer.

        If the call is cancelled, the other server continues the run.

        Raises:
            ThreadAlreadyRunning: A run of the thread is already executing in this process.
            RunnerNotFound, InvalidRunner: The agent has no runner on another server.
            InvalidActivation: The request has no prompt, or does not come from a mailbox.
            RunnerSecretMissing: The secret is not available.
            MissingExtra: The HTTP client is not installed.
            RemoteError: The other server failed; `retryable` states whether a retry can help.
        """
        identity = build_identity(activation)
        dispatch_id = identity.dispatch_id
        if dispatch_id is None:
            raise InvalidActivation("a run on another server needs a dispatch")
        await asyncio.to_thread(check_installed)  # the first call loads the library, which takes some time
        runner = await self._require_runner(identity.agent_id)
        base = runner.callback(self._address())
        activation = await without_files(activation)
        body = run_body(identity, runner, build_prompt(activation), base=base)
        execution = _Execution(identity, dispatch_id, await self._secret_of(runner))
        thread_id = execution.identity.thread_id
        while (former := self._by_thread.get(thread_id)) is not None:
            if not former.cancelled:
                raise ThreadAlreadyRunning(f"thread {thread_id!r} is already running", value=thread_id)
            await former.ended.wait()
        self._by_thread[thread_id] = execution
        self._by_dispatch[execution.dispatch_id] = execution
        try:
            start = RunStart(
                thread_id=identity.thread_id,
                run_id=identity.run_id,
                parent_run_id=identity.parent_run_id,
                identity=identity,
            )
            await sink.emit(start)
            answer = await self._await_answer(execution, runner, body)
            if execution.cancelled:
                await self._tell_of_cancel(execution, runner)
                run_id = execution.identity.run_id
                return AgentRunResult(run_id=run_id, termination=TerminationReason.cancelled())
            if execution.result is None and isinstance(answer, Result):
                execution.result = answer
            if execution.result is not None:
                execution.is_used = True
                if failure := execution.result.failure():
                    raise failure
                return AgentRunResult(run_id=execution.identity.run_id, response=execution.result.text)
            if isinstance(answer, PostroomError):
                raise answer
            await self._tell_of_cancel(execution, runner)
            seconds = runner.timeout.total_seconds()
            raise RemoteTimedOut(f"no result arrived within {seconds:g} s", value=seconds)
        finally:
            del self._by_thread[execution.identity.thread_id]
            execution.ended.set()
            if not (execution.is_used and execution.senders):
                self._forget(execution)

    async def _require_runner(self, agent_id: str) -> HttpRunner:
        runner = await self._runners.runner_of(agent_id)
        if runner is None:
            raise RunnerNotFound(f"agent {agent_id!r} has no runner", value=agent_id)
        if not isinstance(runner, HttpRunner):
            raise InvalidRunner(
                f"the runner of {agent_id!r} does not use another server", value=runner.kind.value
            )
        return runner

    def _forget(self, execution: _Execution) -> None:
        if self._by_dispatch.get(execution.dispatch_id) is execution:
            del self._by_dispatch[execution.dispatch_id]
        execution.over.set()

    async def _await_answer(self, execution: _Execution, runner: HttpRunner, body: bytes) -> Answer:
        work = Tasks("run of another server")
        try:
            alarm = work.start(self._timer.sleep(milliseconds(runner.timeout)), name="time-out")
            stirred = work.start(execution.stirred.wait(), name="result")
            posting = work.start(self._post(execution, runner, body), name="request")
            await asyncio.wait({alarm, stirred, posting}, return_when=asyncio.FIRST_COMPLETED)
            if posting.done() and posting.result() is None:
                await asyncio.wait({alarm, stirred}, return_when=asyncio.FIRST_COMPLETED)
            answer: Answer = posting.result() if posting.done() else None
            return answer
        finally:
            await work.close()

    async def _post(self, execution: _Execution, runner: HttpRunner, body: bytes) -> Answer:
        try:
            response = await self._client.post(
                runner.url, body, secret=execution.secret, key=execution.dispatch_id
            )
            if response is not None:
                return parse_result(response, execution.dispatch_id)
            return (
                None
                if runner.callback(self._address())
                else RemoteMisbehaved(
                    "the other server needs a URL to which it can send its result",
                    remedy="set callback_base to the URL at which the other server reaches this server",
                )
            )
        except InvalidArgument as error:
            return RemoteMisbehaved(f"the other server's answer is invalid: {error.message}")
        except PostroomError as error:
            return error

    async def _tell_of_cancel(self, execution: _Execution, runner: HttpRunner) -> None:
        await within(self._cancel(execution, runner), CANCEL_MS, self._timer)

    async def _cancel(self, execution: _Execution, runner: HttpRunner) -> None:
        path, question, query = runner.url.partition("?")
        url = f"{path.rstrip('/')}/cancel{question}{query}"
        try:
            await self._client.post(url, cancel_body(execution.identity), secret=execution.secret)
        except PostroomError as error:
            _LOG.info("remote.not_cancelled", run_id=execution.identity.run_id, reason=error.describe())

    # Results that other servers send.

    async def take(self, dispatch_id: str, headers: Mapping[str, str], body: bytes) -> None:
        """Accept the result of a dispatch; the result is durable when the call returns.

        Raises:
            WrongSignature: The result is not signed with the secret of the dispatch's agent.
            InvalidArgument: The body is not a result.
            ResultConflict: The run has ended with another result.
            StaleResult: The dispatch must no longer be executed.
            ResultTooEarly: The result cannot be accepted or verified now; it must be sent again later.
            StoreError: The dispatch could not be read; the result must be sent again.
        """
        execution = self._by_dispatch.get(dispatch_id)
        secret = execution.secret if execution is not None else await self._secret_for(dispatch_id)
        proof = Proof.WRONG
        if secret is not None:
            proof = verify_signature(secret, headers, body, now=self._clock.now())
        if proof is not Proof.GOOD:
            what = "is too old" if proof is Proof.TOO_OLD else "is missing or wrong"
            raise WrongSignature(f"the signature {what}")
        result = parse_result(body, dispatch_id)
        execution = self._by_dispatch.get(dispatch_id)
        if execution is not None:
            # Pass a result to its run, and wait within a time limit until the end of the run is stored.
            if execution.result is None and not execution.cancelled:
                execution.result = result
                execution.stirred.set()
            execution.senders += 1
            try:
                await within(execution.over.wait(), STORE_MS, self._timer)
            finally:
                execution.senders -= 1
                if execution.ended.is_set() and not execution.senders:
                    self._forget(execution)
        judge(await self._dispatches.load_dispatch(dispatch_id), result)

    async def _secret_for(self, dispatch_id: str) -> str | None:
        row = await self._dispatches.load_dispatch(dispatch_id)
        agent_id = None if row is None else self._agent_on(row.thread_id)
        if agent_id is None:
            return None
        try:
            return await self._secret_of(await self._require_runner(agent_id))
        except (AgentNotFound, InvalidRunner, RunnerNotFound):
            return None
        except RunnerSecretMissing as error:
            # the error must not tell an unverified sender where the secret is stored
            _LOG.warning("remote.result_not_checked", dispatch_id=dispatch_id, reason=error.describe())
            raise ResultTooEarly("the result cannot be verified at the moment", value=dispatch_id) from error

    def stored(self, run: RunRecord) -> None:
        """Record that the end of a run is durable."""
        execution = self._by_dispatch.get(run.dispatch_id or "")
        if execution is not None and execution.ended.is_set():
            self._forget(execution)

    # Commands to runs.

    def cancel(self, id: str) -> bool:
        """Ask an active run to end; `id` is a dispatch, run or thread id.

        Return False if no run is active.
        """
        executions = [execution for execution in self._by_thread.values() if execution.answers_to(id)]
        return len(executions) == 1 and executions[0].cancel()

    async def cancel_and_wait_by_thread(self, thread_id: str) -> bool:
        """Ask the active run of a thread to end, and wait until the run has ended.

        Return False if no run of the thread is active, or if the run does not end in time.
        """
        if (execution := self._by_thread.get(thread_id)) is None:
            return False
        execution.cancel()
        return await within(execution.ended.wait(), CANCEL_MS + _MARGIN_MS, self._timer)

    async def close(self) -> None:
        """Close the connections, after the caller has ended all runs."""
        await self._client.close()

"""All errors of postroom in one class hierarchy, grouped by who must act.

    PostroomError
    ├── InputError            the caller must correct the call
    │   ├── InvalidArgument, InvalidName, InvalidPattern, InvalidPath, InvalidRecipients, TooLarge
    │   ├── UnknownProject, UnknownAgent, UnknownMessage, UnknownThread, UnknownReservation, UnknownToken
    │   ├── UnknownTask, TaskCircle, UnknownNote, UnknownSubscription, EventNotReported
    │   ├── UnknownRun, UnknownDispatch
    │   ├── NameTaken, ToolNotListed
    │   ├── InvalidSubmission, InvalidRecord, ForeignThread
    │   ├── AgentNotFound, ResolveFailed, InvalidActivation, InvalidResume
    │   └── InvalidRunner, RunnerNotFound, InvalidStep, InvalidSchedule, UnknownSchedule
    ├── StateError            the caller may try again later, or must call in another way
    │   ├── IdempotencyConflict, AgentRetired, ContactRequired, ContactBlocked
    │   ├── AlreadyRead, NotHolder, TaskNotHeld, TaskNotReady, NoteContradicts
    │   ├── CursorExpired, CursorAhead
    │   ├── IllegalTransition, RunNotOpen, ActiveRunConflict, SubmissionRejected, DeliveryBlocked
    │   ├── DuplicateRecord, DedupeKeyInUse, VersionConflict, QueueFull
    │   ├── AlreadyConsumed, StaleDecision, MailboxClosed, MailboxForked, LifecycleBusy, ThreadAlreadyRunning
    │   └── ResultConflict, StaleResult, ResultTooEarly, RunUnsuccessful
    ├── AccessError           the caller must authenticate itself
    │   ├── TokenRequired, WrongToken, IdentityMismatch, WrongSignature, NotPermitted, InsufficientScope
    ├── StaleClaim            the worker lost the dispatch and must stop; nothing was written
    ├── RunFailure            the run failed; `retryable` states whether it is tried again
    │   ├── DeadlinePassed, ExecutorFailed, ExecutorMisbehaved, PhaseError, RunTimedOut, RunnerSecretMissing
    │   ├── GiveUp            raised by work that cannot succeed
    │   ├── CommandError      the program that runs the agent failed
    │   │   ├── CommandBusy, CommandKilled                                  (tried again)
    │   │   └── CommandNotStarted, PromptTooLong, CommandFailed, CommandSaidNothing,
    │   │       CommandTimedOut, CommandFlooded, CommandNotEnded, AgentProtocolBroken, AgentStopped
    │   ├── RemoteError       the other server that runs the agent failed
    │   │   ├── RemoteUnavailable                                           (tried again)
    │   │   └── RemoteRefused, RemoteMisbehaved, RemoteFailed, RemoteTimedOut
    │   └── InferenceError    the call to the model failed
    │       ├── InferenceFailed, ProviderFailed, RateLimited, Overloaded,   (tried again)
    │       │   InferenceTimeout, StreamInterrupted
    │       └── ContextOverflow, RequestRefused, Unauthorized, ModelNotFound, NoModelEndpoint, ContentFiltered
    ├── InternalError         a developer must fix postroom, which broke one of its own rules
    ├── StoreError            the operator must repair the store; its data is unchanged
    │   ├── StoreUnavailable (StoreClosed), StoreFull, StoreReadOnly, CommitUnknown
    │   ├── StoreCorrupt (RecordTooNew)
    │   └── StoreHeld, SchemaTooNew, WrongStore  (at start-up: exit 78)
    ├── ArchiveUnavailable    the operator must repair the archive; mail continues, and the archive catches up
    ├── ServerUnavailable     the person at the command line must start the server
    ├── MissingExtra          the operator must install the extra that the error names
    └── ConfigError           the operator must correct the configuration; nothing starts (exit 78)
        ├── ClientFileRefused, ClientUnfit      a client that cannot be set up in its present state
        └── CredentialRefused                   a platform that no longer accepts a token or a password

`code` is stable and never reused. The message names the value and states what is wrong with it. `remedy` says
what to do.
"""

from collections.abc import Mapping
from typing import ClassVar, Self


class PostroomError(Exception):
    """The base class of all errors, with a stable code, the invalid value and a remedy."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    default_remedy: ClassVar[str] = ""
    branch: ClassVar[str] = "error"
    """The kind of failure in two words; the text of `describe()` begins with it."""
    is_told: bool = False
    """Whether a log line has already reported this error, so that it need not be logged again."""

    def __init__(
        self,
        message: str,
        *,
        value: object = None,
        remedy: str | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.value = value
        self.remedy = self.default_remedy if remedy is None else remedy
        self.details = dict(details or {})
        if self.remedy:
            self.add_note(f"Remedy: {self.remedy}")

    def met_at(self, place: str) -> Self:
        """Return a copy of the error whose message begins with the place of the error."""
        text = f"{place}: {self.message}"
        return type(self)(text, value=self.value, remedy=self.remedy, details={**self.details, "at": place})

    def describe(self) -> str:
        """Return the kind of failure and the message as one line."""
        return f"{self.branch}: {self.message}"

    def as_dict(self) -> dict[str, object]:
        """Return the error as JSON-compatible data."""
        return {
            "code": self.code,
            "message": self.message,
            "value": self.value,
            "remedy": self.remedy,
            "retryable": self.retryable,
            "details": self.details,
        }


class InputError(PostroomError):
    """The call is invalid, and a repeated call would fail again."""

    code = "invalid_input"
    branch = "validation error"


class InvalidArgument(InputError):
    """An argument is missing, has the wrong type, or is out of range."""

    code = "invalid_argument"


class InvalidName(InputError):
    """An agent's name breaks the rules for names."""

    code = "invalid_name"


class NameTaken(InputError):
    """The name differs from another agent's name only in upper and lower case."""

    code = "name_taken"


class ToolNotListed(InputError):
    """The tool is not available at the called URL.

    `details` contains a URL that has the tool.
    """

    code = "tool_not_listed"


class InvalidPattern(InputError):
    """A reservation pattern leaves the project's root, or cannot be parsed."""

    code = "invalid_pattern"


class InvalidPath(InputError):
    """A path is relative, is a placeholder, or leaves the permitted folder."""

    code = "invalid_path"
    default_remedy = "correct the path"


class InvalidRecipients(InputError):
    """At least one recipient is invalid, so the message was not sent."""

    code = "invalid_recipients"


class TooLarge(InputError):
    """A body, an attachment or a list exceeds a configured limit."""

    code = "too_large"
    default_remedy = "send less, or split it into several parts"


class UnknownProject(InputError):
    """No project has the given path or slug."""

    code = "unknown_project"
    default_remedy = (
        "call ensure_project with the project's absolute path: it also finds a renamed folder; if "
        "the folder is a copy, the operator runs `postroom projects move`"
    )


class UnknownAgent(InputError):
    """No agent of the project has the given name."""

    code = "unknown_agent"
    default_remedy = "call register_agent, or call list_agents to see the registered names"


class UnknownMessage(InputError):
    """No message with the given id is visible to the caller."""

    code = "unknown_message"
    default_remedy = "use a message id from fetch_inbox or search_messages"


class UnknownThread(InputError):
    """The project has no thread with the given id."""

    code = "unknown_thread"
    default_remedy = "use the thread id of one of the thread's messages"


class UnknownReservation(InputError):
    """The project has no reservation with the given id."""

    code = "unknown_reservation"
    default_remedy = "use a reservation id from list_file_reservations"


class UnknownTask(InputError):
    """The project has no task with the given id."""

    code = "unknown_task"
    default_remedy = "use a task id from list_tasks"


class TaskCircle(InputError):
    """The dependencies of the tasks would form a cycle."""

    code = "task_circle"
    default_remedy = "remove one of the tasks in `details.circle` from `depends_on`"


class UnknownNote(InputError):
    """The project has no active note with the given id."""

    code = "unknown_note"
    default_remedy = "use a note id from find_notes"


class UnknownSubscription(InputError):
    """The agent has no subscription with the given id."""

    code = "unknown_subscription"
    default_remedy = "use a subscription id from list_subscriptions"


class EventNotReported(InputError):
    """Nothing reports events of the requested kind, so agents cannot subscribe to such events."""

    code = "event_not_reported"


class UnknownToken(InputError):
    """No token has the given name."""

    code = "unknown_token"
    default_remedy = "list the tokens: `postroom tokens list --all`"


class UnknownRun(InputError):
    """No run has the given id."""

    code = "unknown_run"
    default_remedy = "list the runs: `postroom runs list`"


class UnknownDispatch(InputError):
    """No dispatch has the given id, or the dispatch was deleted after the retention period."""

    code = "unknown_dispatch"
    default_remedy = "list the runs: `postroom runs list`; list the dead letters: `postroom runs dead`"


class InvalidSubmission(InputError):
    """A submission lacks a required part, so nothing was stored."""

    code = "invalid_submission"


class InvalidRecord(InputError):
    """A record breaks a rule for its fields, so the record was not stored."""

    code = "invalid_record"
    default_remedy = "correct the record, and call again; nothing was stored"


class ForeignThread(InputError):
    """The run belongs to a different thread than the call names."""

    code = "foreign_thread"
    default_remedy = "pass the id of the thread that the run belongs to"


class AgentNotFound(InputError):
    """No agent has the given name, so the run fails without a retry."""

    code = "agent_not_found"
    branch = "runtime error"
    default_remedy = "register the agent, or submit with another agent"


class ResolveFailed(InputError):
    """The configuration of the run cannot be assembled."""

    code = "resolve_failed"
    branch = "runtime error"
    default_remedy = (
        "restore the configuration that was in use when the run was accepted, or submit the work again"
    )


class InvalidActivation(InputError):
    """The request to start a run cannot be executed."""

    code = "invalid_activation"
    branch = "runtime error"
    default_remedy = "submit the work to a mailbox, which starts a run for it"


class InvalidResume(InputError):
    """A resume request does not name a run that can be resumed."""

    code = "invalid_resume"
    branch = "runtime error"
    default_remedy = "submit to the thread without a run id"


class InvalidRunner(InputError):
    """The declaration of a runner is invalid."""

    code = "invalid_runner"
    default_remedy = "correct the runner's declaration as described in docs/runners.md"


class RunnerNotFound(InputError):
    """The agent has no runner, so the run fails without a retry."""

    code = "runner_not_found"
    branch = "runtime error"
    default_remedy = "declare a runner for this agent with a recipe, a command and a working folder"


class InvalidStep(InputError):
    """A step of a run has no name, or repeats the name of another step."""

    code = "invalid_step"


class InvalidSchedule(InputError):
    """A schedule has an invalid cron expression, interval, time zone, policy or jitter."""

    code = "invalid_schedule"


class UnknownSchedule(InputError):
    """No schedule has the given name."""

    code = "unknown_schedule"
    default_remedy = "list the schedules: `postroom schedules list` or mailbox.schedules.list()"


class StateError(PostroomError):
    """The call is valid but does not fit the current state."""

    code = "state_conflict"
    branch = "validation error"


class IdempotencyConflict(StateError):
    """The idempotency key was used before with different content."""

    code = "idempotency_conflict"
    default_remedy = (
        "use a new key for a new call; to get the stored answer, repeat the call with the same body"
    )


class AgentRetired(StateError):
    """The agent is retired, so the agent cannot send or receive messages or be assigned tasks."""

    code = "agent_retired"
    default_remedy = "call unretire_agent, or write to another agent"


class ContactRequired(StateError):
    """The recipient accepts messages only from approved contacts."""

    code = "contact_required"
    default_remedy = "call request_contact, and wait until the other agent accepts"


class ContactBlocked(StateError):
    """The recipient does not accept messages from the sender."""

    code = "contact_blocked"
    default_remedy = "write to another agent of the project, or to a person"


class AlreadyRead(StateError):
    """The message cannot be recalled, because a recipient has already read the message."""

    code = "already_read"
    default_remedy = "send a correction on the same thread"


class NotHolder(StateError):
    """The reservation belongs to another agent."""

    code = "not_holder"
    default_remedy = "ask the holder, or call force_release_file_reservation with a reason"


class TaskNotHeld(StateError):
    """The caller does not hold the task under the given epoch."""

    code = "task_not_held"
    default_remedy = "stop working on the task, and claim another one with claim_task"


class TaskNotReady(StateError):
    """The task cannot be claimed or changed in its current state."""

    code = "task_not_ready"
    default_remedy = "claim another task with claim_task"


class NoteContradicts(StateError):
    """The new note contradicts an active note on the same subject, and was not stored."""

    code = "note_contradicts"
    default_remedy = "name the older note in `replaces` if it is no longer true, or use another subject"


class CursorExpired(StateError):
    """Events after the cursor were deleted, so a reader would miss events."""

    code = "cursor_expired"
    default_remedy = "continue after `details.oldest`: all events up to that number were deleted"


class CursorAhead(StateError):
    """The cursor is newer than the newest event, so the cursor belongs to another database."""

    code = "cursor_ahead"
    default_remedy = "continue after the newest event: the database was restored or replaced"


class IllegalTransition(StateError):
    """The record cannot change to the requested state."""

    code = "illegal_transition"
    default_remedy = "read the record again to see its current state"


class RunNotOpen(StateError):
    """The run accepts no input, because the run is neither prepared nor waiting."""

    code = "run_not_open"
    default_remedy = "submit to the thread without a run id"


class ActiveRunConflict(StateError):
    """The thread's active run did not stop in time, so nothing was stored."""

    code = "active_run_conflict"
    retryable = True
    default_remedy = "cancel the active run, or submit with the strategy `queue`"


class SubmissionRejected(StateError):
    """The thread is busy, and the submission used the strategy `reject`."""

    code = "submission_rejected"
    default_remedy = "submit again after the active run has ended, or use another strategy"


class DeliveryBlocked(StateError):
    """The message cannot be delivered yet, because a pending barrier message precedes the message."""

    code = "delivery_blocked"
    default_remedy = "withdraw the barrier, or wait until a run has read it"


class DuplicateRecord(StateError):
    """A record with the given id already exists."""

    code = "duplicate_record"
    default_remedy = "choose another id, or read the record that already has this id"


class DedupeKeyInUse(StateError):
    """An open dispatch of the thread already has the given dedupe key."""

    code = "dedupe_key_in_use"
    default_remedy = "wait until the run with this key has ended, or use another key"


class VersionConflict(StateError):
    """Another writer has changed the record since the caller read the record."""

    code = "version_conflict"
    retryable = True
    default_remedy = "read the record again, then repeat the change"


class QueueFull(StateError):
    """The run queue, or a thread's queue of pending messages, is full."""

    code = "queue_full"
    retryable = True
    default_remedy = "submit again when some of the queued runs have started"


class AlreadyConsumed(StateError):
    """The pending message can no longer be changed, because a run has read the message."""

    code = "already_consumed"
    default_remedy = "send a correction on the same thread"


class StaleDecision(StateError):
    """The question was already answered, or is no longer open."""

    code = "stale_decision"
    default_remedy = "list the open questions again; only an open question can be answered"


class MailboxClosed(StateError):
    """The mailbox is closed and accepts no calls."""

    code = "mailbox_closed"
    retryable = True
    default_remedy = "repeat the call on an open mailbox"


class MailboxForked(StateError):
    """A forked process used a mailbox that its parent process opened."""

    code = "mailbox_forked"
    default_remedy = (
        "open a mailbox in the child process after the fork; several processes can use a PostgreSQL "
        "database at once, but only one process can use a SQLite file"
    )


class LifecycleBusy(StateError):
    """The mailbox is currently starting or stopping."""

    code = "lifecycle_busy"
    retryable = True
    default_remedy = "wait a second, then repeat the call"


class ThreadAlreadyRunning(StateError):
    """The executor already executes a run of the thread."""

    code = "thread_already_running"
    branch = "runtime error"
    default_remedy = "repeat the call after the thread's active run has ended"


class ResultConflict(StateError):
    """The dispatch already has a different result, so the new result was not stored."""

    code = "result_conflict"
    default_remedy = "send only one result for each dispatch: the first result counts"


class StaleResult(StateError):
    """The dispatch must no longer be executed, so the result was not stored."""

    code = "stale_result"
    default_remedy = "stop the work on this dispatch, and send no more results for it"


class ResultTooEarly(StateError):
    """The result cannot be accepted yet, because the run is about to restart or to end."""

    code = "result_too_early"
    retryable = True
    default_remedy = "wait a few seconds, then send the result again"


class RunUnsuccessful(StateError):
    """The awaited run failed or was cancelled."""

    code = "run_unsuccessful"
    default_remedy = "fix the cause, then enqueue the work again"


class AccessError(PostroomError):
    """The caller is not authenticated."""

    code = "access_denied"
    branch = "access error"


class TokenRequired(AccessError):
    """The server requires a token, and the call did not include a token."""

    code = "token_required"
    default_remedy = "send the agent's token in the Postroom-Agent-Token header"


class WrongToken(AccessError):
    """The server does not know the token, or the token is revoked or expired."""

    code = "wrong_token"
    default_remedy = "create a new token with `postroom agents token` or `postroom tokens rotate`"


class IdentityMismatch(AccessError):
    """The token belongs to a different agent than the call names."""

    code = "identity_mismatch"
    default_remedy = "use the name of the agent that the token belongs to"


class WrongSignature(AccessError):
    """The signature of the request is wrong or too old."""

    code = "wrong_signature"


class NotPermitted(AccessError):
    """The caller is authenticated, but lacks permission for the call."""

    code = "not_permitted"


class InsufficientScope(AccessError):
    """The token lacks scopes that the call requires.

    `details.needed` lists all required scopes.
    """

    code = "insufficient_scope"
    default_remedy = "use a token with these scopes; the operator creates one with `postroom tokens create`"


class StaleClaim(PostroomError):
    """The claim of the dispatch has ended, so nothing was stored."""

    code = "stale_claim"
    branch = "stale claim"


class RunFailure(PostroomError):
    """A run failed.

    `retryable` is true if the run will be retried.
    """

    code = "run_failure"
    branch = "run failed"

    def __init__(self, message: str, *, retry_after_ms: int | None = None, **facts: object) -> None:
        super().__init__(message, **facts)  # type: ignore[arg-type]
        self.retry_after_ms = retry_after_ms
        """The time, in milliseconds, that the called service asked its callers to wait, or None if it did not
        ask.
        """


class ExecutorFailed(RunFailure):
    """The executor raised an unexpected exception, and the run is retried."""

    code = "executor_failed"
    retryable = True


class GiveUp(RunFailure):
    """Raised by a run to fail immediately, without a retry."""

    code = "gave_up"
    branch = "gave up"


class RunTimedOut(RunFailure):
    """The run exceeded the maximum duration of a run."""

    code = "run_timed_out"


class DeadlinePassed(RunFailure):
    """The run's deadline passed before the run started."""

    code = "deadline_passed"


class ExecutorMisbehaved(RunFailure):
    """The executor returned an invalid result."""

    code = "executor_misbehaved"


class PhaseError(RunFailure):
    """A phase of the agent loop failed, and the run ends."""

    code = "phase_error"


class RunnerSecretMissing(RunFailure):
    """A runner's secret is missing; `value` names the environment variable or file of the secret."""

    code = "runner_secret_missing"
    default_remedy = "set the variable in the server's environment, and restart the server"


class CommandError(RunFailure):
    """The program that runs the agent failed."""

    code = "command_error"
    branch = "command failed"


class CommandNotStarted(CommandError):
    """The program or its working folder does not exist, or the program is not executable."""

    code = "command_not_started"
    default_remedy = "correct the command and the working folder of the agent's runner"


class PromptTooLong(CommandError):
    """The operating system cannot pass the prompt to the program as an argument."""

    code = "prompt_too_long"
    default_remedy = "set the field `prompt` of the agent's runner to stdin or file"


class CommandFailed(CommandError):
    """The program exited with a failure code, or reported a failure in its output."""

    code = "command_failed"


class CommandSaidNothing(CommandError):
    """The program exited successfully, but wrote no output and asked no question."""

    code = "command_said_nothing"
    default_remedy = "check the command's output, and check that the recipe matches the program"


class CommandTimedOut(CommandError):
    """The program was stopped, because the program exceeded its time limit or was silent for too long."""

    code = "command_timed_out"
    default_remedy = (
        "raise `timeout` or `idle_timeout` in the agent's runner, or give the agent a smaller task"
    )


class CommandFlooded(CommandError):
    """The program was stopped, because the program wrote more output than allowed."""

    code = "command_flooded"
    default_remedy = "let the command write its output to a file"


class CommandNotEnded(CommandError):
    """Some processes of the run could not be ended.

    The message names the processes.
    """

    code = "command_not_ended"
    default_remedy = "end these processes yourself"


class CommandBusy(CommandError):
    """The program requested a later retry (exit code 75), or the system could not start the program now."""

    code = "command_busy"
    retryable = True


class CommandKilled(CommandError):
    """The program was ended by a signal that postroom did not send."""

    code = "command_killed"
    retryable = True


class AgentProtocolBroken(CommandError):
    """The program's output violates the Agent Client Protocol."""

    code = "agent_protocol_broken"
    default_remedy = "check the command: it must start the agent in its ACP mode and print nothing else"


class AgentStopped(CommandError):
    """The agent refused the task or reached its own limit; `value` states the reason."""

    code = "agent_stopped"
    default_remedy = "give the agent a smaller task, or raise the agent's own limit"


class RemoteError(RunFailure):
    """The remote server that executes an agent's runs failed."""

    code = "remote_error"


class RemoteUnavailable(RemoteError):
    """The remote server was unreachable, silent or busy, and the run is retried."""

    code = "remote_unavailable"
    retryable = True


class RemoteRefused(RemoteError):
    """The remote server rejected the run."""

    code = "remote_refused"
    default_remedy = "check the runner's URL and secret, and read the other server's log"


class RemoteMisbehaved(RemoteError):
    """The response of the remote server is too large, or is not valid JSON of the expected form."""

    code = "remote_misbehaved"


class RemoteFailed(RemoteError):
    """The remote server accepted the run and reported a failure."""

    code = "remote_failed"


class RemoteTimedOut(RemoteError):
    """The remote server sent no result within the time limit of the run."""

    code = "remote_timed_out"
    default_remedy = "raise the runner's `timeout`, or find out why the other server did not answer"


class InferenceError(RunFailure):
    """A call to a model failed."""

    code = "inference_error"
    branch = "inference error"


class InferenceFailed(InferenceError):
    """A model call failed for an unknown reason."""

    code = "inference_failed"
    retryable = True


class ProviderFailed(InferenceError):
    """The provider reported an error."""

    code = "provider_failed"
    branch = "provider failed"
    retryable = True


class RateLimited(InferenceError):
    """The provider's rate limit was exceeded."""

    code = "rate_limited"
    branch = "rate limited"
    retryable = True


class Overloaded(InferenceError):
    """The provider is overloaded."""

    code = "overloaded"
    branch = "overloaded"
    retryable = True


class InferenceTimeout(InferenceError):
    """The model did not answer in time."""

    code = "inference_timeout"
    branch = "timed out"
    retryable = True


class StreamInterrupted(InferenceError):
    """The stream ended before the answer was complete."""

    code = "stream_interrupted"
    branch = "stream interrupted"
    retryable = True


class ContextOverflow(InferenceError):
    """The conversation exceeds the model's context."""

    code = "context_overflow"
    branch = "context overflow"


class RequestRefused(InferenceError):
    """The provider rejected the request as invalid."""

    code = "request_refused"
    branch = "request refused"


class Unauthorized(InferenceError):
    """The provider rejected the credentials, or the account's quota is used up."""

    code = "unauthorized"
    branch = "unauthorized"


class ModelNotFound(InferenceError):
    """The provider does not have the requested model."""

    code = "model_not_found"
    branch = "model not found"


class NoModelEndpoint(ModelNotFound):
    """The URL returned a web page or other data, not a model's response."""

    code = "no_model_endpoint"
    branch = "no model endpoint"


class ContentFiltered(InferenceError):
    """The provider's content policy withheld the answer."""

    code = "content_filtered"
    branch = "content filtered"


class InternalError(PostroomError):
    """A defect in postroom broke an internal rule.

    Nothing was changed.
    """

    code = "internal_rule_broken"
    branch = "internal error"


class StoreError(PostroomError):
    """The store failed.

    The stored data is unchanged.
    """

    code = "store_error"
    branch = "store error"
    default_remedy = "run `postroom doctor` on the server"


class StoreUnavailable(StoreError):
    """The store is closed or did not respond in time.

    The call may be repeated.
    """

    code = "store_unavailable"
    retryable = True


class StoreClosed(StoreUnavailable):
    """The process has already closed the store."""

    code = "store_closed"
    default_remedy = "open the store again, or restart the server if it owns the store"


class StoreFull(StoreError):
    """The disk is full.

    Nothing was stored.
    """

    code = "store_full"
    retryable = True
    default_remedy = "free space on the database's disk, and try again"


class StoreReadOnly(StoreError):
    """The database file or its folder is not writable."""

    code = "store_read_only"
    default_remedy = "give the server's user write access to the database and its folder"


class StoreCorrupt(StoreError):
    """The database is damaged."""

    code = "store_corrupt"
    default_remedy = (
        "stop the programs that use the database, then restore a backup; for a server, run `postroom restore`"
    )


class RecordTooNew(StoreCorrupt):
    """A newer release wrote the record, so the current release skips the record."""

    code = "record_too_new"
    default_remedy = "run the newer release, which can read the record"


class CommitUnknown(StoreError):
    """The connection broke during a commit, so nobody knows whether the commit was stored."""

    code = "commit_unknown"
    retryable = True
    default_remedy = "check whether the change was stored, or repeat the call with the same key"


class StoreHeld(StoreError):
    """Another process uses the database file."""

    code = "store_held"
    default_remedy = "stop the other server, or run commands through it"


class SchemaTooNew(StoreError):
    """A newer release of postroom wrote the database."""

    code = "schema_too_new"
    default_remedy = "run the newer release again, or restore the backup that was taken before its migration"


class WrongStore(StoreError):
    """The database is missing, empty, damaged, outdated, or not the expected database."""

    code = "wrong_store"
    default_remedy = (
        "choose one: restore a backup (`postroom restore --force FILE`); rebuild the database from "
        "the archive (`postroom rebuild database FILE`) and restore that file, without the changes "
        "that the archive had not stored yet; or keep this database and set the archive aside "
        "(`postroom up --new-store`)"
    )
    on_postgres: ClassVar[str] = (
        "choose one: restore a dump with pg_restore; rebuild the database from the archive "
        "(`postroom rebuild database FILE`), without the changes that the archive had not stored "
        "yet, and copy it to a new schema (`postroom database copy --from sqlite:FILE --to "
        "postgresql://...`; the setting database_schema names it); or keep this database and set the "
        "archive aside (`postroom up --new-store`)"
    )
    """The remedy for a store on PostgreSQL, because `postroom restore` only supports SQLite."""


class ArchiveUnavailable(PostroomError):
    """Git could not write the archive.

    Mail continues, and the archive is completed later.
    """

    code = "archive_unavailable"
    retryable = True
    default_remedy = "run `postroom doctor` to find the cause; the archive catches up once Git works again"


class ServerUnavailable(PostroomError):
    """No server answered."""

    code = "server_unavailable"
    retryable = True
    default_remedy = "start the server with `postroom up`"


class MissingExtra(PostroomError):
    """An optional package is not installed."""

    code = "missing_extra"


class ConfigError(PostroomError):
    """A setting is missing or invalid, so nothing was started."""

    code = "config_error"
    default_remedy = "run `postroom config show` to see each setting and its source"


class CredentialRefused(ConfigError):
    """A remote service rejected a token or password, which is not used again."""

    code = "credential_refused"
    default_remedy = "set another token or password"


class ClientFileRefused(ConfigError):
    """A client's configuration file cannot be changed safely, so the file was not changed."""

    code = "client_file_refused"
    default_remedy = "correct the file, or write the entry by hand as shown in docs/start.md"


class ClientUnfit(ConfigError):
    """A client program is not installed, or is too old for the setup."""

    code = "client_unfit"
    default_remedy = "install or update the client"


def why_unreadable(error: Exception) -> str:
    """Return the reason why a JSON file is unreadable, in words for people who do not know Python."""
    if isinstance(error, OSError):
        return error.strerror or "the operating system gave no reason"
    if isinstance(error, RecursionError) or (isinstance(error, ValueError) and type(error) is not ValueError):
        return "it is not valid JSON"  # these defects raise subclasses of ValueError
    return "a field is missing or has the wrong type"


def _branches(kind: type[PostroomError]) -> list[type[PostroomError]]:
    results = [kind]
    for child in kind.__subclasses__():
        if child.__module__ == __name__:  # a class of another module may reuse its parent's code
            results.extend(_branches(child))
    return results


def all_errors() -> list[type[PostroomError]]:
    """Return all error classes of the module, one for each code."""
    return _branches(PostroomError)

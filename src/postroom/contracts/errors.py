"""Every failure postroom can name, in one tree, split by who must act.

    PostroomError
    ├── InputError            the caller mends the call
    │   ├── InvalidArgument, InvalidName, InvalidPattern, InvalidPath, InvalidRecipients, TooLarge
    │   ├── UnknownProject, UnknownAgent, UnknownMessage, UnknownThread, UnknownReservation, UnknownToken
    │   ├── UnknownRun, UnknownDispatch
    │   ├── NameTaken, ToolNotListed
    │   ├── InvalidSubmission, InvalidRecord, ForeignThread
    │   ├── AgentNotFound, ResolveFailed, InvalidActivation, InvalidResume
    │   └── InvalidRunner, RunnerNotFound, InvalidStep, InvalidSchedule, UnknownSchedule
    ├── StateError            the caller, at another time or in another way
    │   ├── IdempotencyConflict, AgentRetired, ContactRequired, ContactBlocked
    │   ├── AlreadyRead, NotHolder, CursorExpired, CursorAhead
    │   ├── IllegalTransition, RunNotOpen, ActiveRunConflict, SubmissionRejected, DeliveryBlocked
    │   ├── DuplicateRecord, DedupeKeyInUse, VersionConflict, QueueFull
    │   ├── AlreadyConsumed, StaleDecision, MailboxClosed, MailboxForked, LifecycleBusy, ThreadAlreadyRunning
    │   └── ResultConflict, StaleResult, ResultTooEarly, RunUnsuccessful
    ├── AccessError           the caller proves who it is
    │   ├── TokenRequired, WrongToken, IdentityMismatch, WrongSignature, NotPermitted, InsufficientScope
    ├── StaleClaim            the worker: it lost the dispatch, must stop and has written nothing
    ├── RunFailure            the run failed; whether it is tried again is said by `retryable`
    │   ├── DeadlinePassed, ExecutorFailed, ExecutorMisbehaved, PhaseError, RunTimedOut, RunnerSecretMissing
    │   ├── GiveUp            raised by work that cannot succeed
    │   ├── CommandError      the program that runs the agent
    │   │   ├── CommandBusy, CommandKilled                                  (tried again)
    │   │   └── CommandNotStarted, PromptTooLong, CommandFailed, CommandSaidNothing,
    │   │       CommandTimedOut, CommandFlooded, CommandNotEnded, AgentProtocolBroken, AgentStopped
    │   ├── RemoteError       the other server that runs the agent
    │   │   ├── RemoteUnavailable                                           (tried again)
    │   │   └── RemoteRefused, RemoteMisbehaved, RemoteFailed, RemoteTimedOut
    │   └── InferenceError    the model's side
    │       ├── InferenceFailed, ProviderFailed, RateLimited, Overloaded,   (tried again)
    │       │   InferenceTimeout, StreamInterrupted
    │       └── ContextOverflow, RequestRefused, Unauthorized, ModelNotFound, NoModelEndpoint, ContentFiltered
    ├── InternalError         a developer: a rule of our own was broken
    ├── StoreError            the operator; the data is as it was
    │   ├── StoreUnavailable (StoreClosed), StoreFull, StoreReadOnly, CommitUnknown
    │   ├── StoreCorrupt (RecordTooNew)
    │   └── StoreHeld, SchemaTooNew, WrongStore  (at start-up: exit 78)
    ├── ArchiveUnavailable    the operator; mail goes on, the backlog drains later
    ├── ServerUnavailable     the person at the command line: start the server
    ├── MissingExtra          the operator installs what is named
    └── ConfigError           the operator, before anything starts (exit 78)
        ├── ClientFileRefused, ClientUnfit      a client that cannot be set up as it is
        └── CredentialRefused                   a platform that takes a token or a password no more

`code` is stable and never reused. The message names the value and what is wrong; `remedy` says what to do.
"""

from collections.abc import Mapping
from typing import ClassVar, Self


class PostroomError(Exception):
    """The root. Carries a stable code, the offending value and the remedy, which a traceback shows, too."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    default_remedy: ClassVar[str] = ""
    branch: ClassVar[str] = "error"
    """What kind of failure it is, in two words; begins `describe()`."""
    is_told: bool = False
    """Whether a line of the log says it already: lines that only repeat it are left out."""

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
        """Return the same failure with the place where it was met before its message."""
        text = f"{place}: {self.message}"
        return type(self)(text, value=self.value, remedy=self.remedy, details={**self.details, "at": place})

    def describe(self) -> str:
        """Return the failure as one line for logs and records: its kind, then its message."""
        return f"{self.branch}: {self.message}"

    def as_dict(self) -> dict[str, object]:
        """Return the failure as plain JSON data, the same on every edge."""
        return {
            "code": self.code,
            "message": self.message,
            "value": self.value,
            "remedy": self.remedy,
            "retryable": self.retryable,
            "details": self.details,
        }


class InputError(PostroomError):
    """The call is wrong as it stands; repeating it cannot help."""

    code = "invalid_input"
    branch = "validation error"


class InvalidArgument(InputError):
    """An argument is missing, of another type, or outside its range."""

    code = "invalid_argument"


class InvalidName(InputError):
    """An agent's name breaks the rule for names."""

    code = "invalid_name"


class NameTaken(InputError):
    """The name differs only by case from one that is in use."""

    code = "name_taken"


class ToolNotListed(InputError):
    """The address that was called does not list the tool; `details` has the address that does."""

    code = "tool_not_listed"


class InvalidPattern(InputError):
    """A reservation pattern leaves the project root or cannot be read."""

    code = "invalid_pattern"


class InvalidPath(InputError):
    """A path is relative, a placeholder, or leaves the place it must stay in."""

    code = "invalid_path"


class InvalidRecipients(InputError):
    """At least one recipient is not valid; nothing was sent to anybody."""

    code = "invalid_recipients"


class TooLarge(InputError):
    """A body, an attachment or a list is over its configured limit."""

    code = "too_large"


class UnknownProject(InputError):
    """No project has this path or slug."""

    code = "unknown_project"
    default_remedy = (
        "call ensure_project with the project's absolute path first, which finds a renamed folder again; "
        "for a folder that was copied elsewhere the operator runs `postroom projects move`"
    )


class UnknownAgent(InputError):
    """No agent of the project has this name."""

    code = "unknown_agent"
    default_remedy = "call register_agent first, or list_agents to see who is there"


class UnknownMessage(InputError):
    """No message with this id is visible to the caller."""

    code = "unknown_message"
    default_remedy = "take the id from fetch_inbox or search_messages"


class UnknownThread(InputError):
    """The project has no thread with this id."""

    code = "unknown_thread"
    default_remedy = "take the thread id from a message of the thread"


class UnknownReservation(InputError):
    """No reservation with this id exists in the project."""

    code = "unknown_reservation"
    default_remedy = "take the id from list_file_reservations"


class UnknownToken(InputError):
    """No token has this name."""

    code = "unknown_token"
    default_remedy = "see `postroom tokens list --all`"


class UnknownRun(InputError):
    """No run has this id."""

    code = "unknown_run"
    default_remedy = "see `postroom runs list`"


class UnknownDispatch(InputError):
    """No dispatch has this id; it may have been purged after its time."""

    code = "unknown_dispatch"
    default_remedy = "see `postroom runs list`, or `postroom runs dead`"


class InvalidSubmission(InputError):
    """A submission lacks what it needs; nothing was written."""

    code = "invalid_submission"


class InvalidRecord(InputError):
    """A record breaks a rule of its shape and was not stored."""

    code = "invalid_record"


class ForeignThread(InputError):
    """The run belongs to another thread."""

    code = "foreign_thread"
    default_remedy = "name the thread that the run belongs to"


class AgentNotFound(InputError):
    """No agent of this name can be resolved; a run that needs it cannot be tried again."""

    code = "agent_not_found"
    branch = "runtime error"
    default_remedy = "register the agent, or submit with another one"


class ResolveFailed(InputError):
    """What a run is pinned to cannot be put together."""

    code = "resolve_failed"
    branch = "runtime error"


class InvalidActivation(InputError):
    """The request that a run was started with cannot be executed."""

    code = "invalid_activation"
    branch = "runtime error"


class InvalidResume(InputError):
    """A resume names nothing that can be resumed."""

    code = "invalid_resume"
    branch = "runtime error"


class InvalidRunner(InputError):
    """A runner cannot be run as it is declared."""

    code = "invalid_runner"


class RunnerNotFound(InputError):
    """Nobody has said how this agent is run; a run that needs it cannot be tried again."""

    code = "runner_not_found"
    branch = "runtime error"
    default_remedy = "declare a runner for this agent: its recipe, its command and its working folder"


class InvalidStep(InputError):
    """A step of a run has no name, or one that the run has used before."""

    code = "invalid_step"


class InvalidSchedule(InputError):
    """A schedule cannot be kept as it is said: its cron line, interval, time zone, policy or jitter."""

    code = "invalid_schedule"


class UnknownSchedule(InputError):
    """There is no schedule of this name."""

    code = "unknown_schedule"
    default_remedy = "list them: postroom schedules list, or mailbox.schedules.list()"


class StateError(PostroomError):
    """The call is well formed but does not fit the present state."""

    code = "state_conflict"
    branch = "validation error"


class IdempotencyConflict(StateError):
    """The idempotency key was used before with another body."""

    code = "idempotency_conflict"
    default_remedy = "use a new key for a new call; repeat the same body to get the first answer again"


class AgentRetired(StateError):
    """The agent is retired: it neither sends nor receives."""

    code = "agent_retired"
    default_remedy = "call unretire_agent, or write to another agent"


class ContactRequired(StateError):
    """The recipient takes mail from approved contacts only."""

    code = "contact_required"
    default_remedy = "call request_contact and wait for the answer"


class ContactBlocked(StateError):
    """The recipient takes no mail from this sender."""

    code = "contact_blocked"
    default_remedy = "write to another agent of the project, or to a person"


class AlreadyRead(StateError):
    """The message was read before it could be recalled."""

    code = "already_read"
    default_remedy = "send a correction on the same thread"


class NotHolder(StateError):
    """The reservation belongs to another agent."""

    code = "not_holder"
    default_remedy = "ask the holder, or call force_release_file_reservation with a reason"


class CursorExpired(StateError):
    """Events after this cursor were purged; a reader that continued would miss some."""

    code = "cursor_expired"
    default_remedy = "start again from `oldest` and read the inbox once in full"


class CursorAhead(StateError):
    """The cursor lies beyond the newest event: it belongs to another database."""

    code = "cursor_ahead"
    default_remedy = "start again from `newest`; the database was restored or is another one"


class IllegalTransition(StateError):
    """A record was asked to move where its state machine has no arrow."""

    code = "illegal_transition"


class RunNotOpen(StateError):
    """The run is neither prepared nor waiting, so that nothing can be delivered to it."""

    code = "run_not_open"
    default_remedy = "submit to the thread without naming the run"


class ActiveRunConflict(StateError):
    """The thread's active run did not give way; nothing of the submission was written."""

    code = "active_run_conflict"
    retryable = True
    default_remedy = "cancel the active run, or submit with the strategy `queue`"


class SubmissionRejected(StateError):
    """The thread is busy and the submission asked to be rejected then."""

    code = "submission_rejected"
    default_remedy = "submit again when the run has ended, or with another strategy"


class DeliveryBlocked(StateError):
    """A pending message that is a barrier stands before the new one."""

    code = "delivery_blocked"
    default_remedy = "retract the barrier, or wait until a run has read it"


class DuplicateRecord(StateError):
    """A record with this id exists."""

    code = "duplicate_record"


class DedupeKeyInUse(StateError):
    """An open dispatch of the thread has this dedupe key."""

    code = "dedupe_key_in_use"
    default_remedy = "the work is queued or running already; look at the dispatch that is named"


class VersionConflict(StateError):
    """Somebody else wrote in between; read again and decide anew."""

    code = "version_conflict"
    retryable = True


class QueueFull(StateError):
    """As many runs, or as many messages for the runs of a thread, wait as may."""

    code = "queue_full"
    retryable = True
    default_remedy = "submit again when some have run"


class AlreadyConsumed(StateError):
    """A run has read the pending message; it can no longer be changed."""

    code = "already_consumed"
    default_remedy = "send a correction on the thread"


class StaleDecision(StateError):
    """The question was answered before, or is no longer asked."""

    code = "stale_decision"
    default_remedy = "look at the run: what it waits for has changed"


class MailboxClosed(StateError):
    """The mailbox takes nothing more."""

    code = "mailbox_closed"
    retryable = True


class MailboxForked(StateError):
    """A forked process used a mailbox that its parent opened: the threads that serve it are in the parent."""

    code = "mailbox_forked"
    default_remedy = (
        "open a mailbox in the child, after the fork: on PostgreSQL any number of processes can; "
        "one SQLite file is for one process"
    )


class LifecycleBusy(StateError):
    """The lifecycle is being started or stopped at this moment."""

    code = "lifecycle_busy"
    retryable = True


class ThreadAlreadyRunning(StateError):
    """The executor runs this thread already."""

    code = "thread_already_running"
    branch = "runtime error"


class ResultConflict(StateError):
    """The dispatch has had another result, or another end, already; nothing was changed."""

    code = "result_conflict"


class StaleResult(StateError):
    """The result comes for a dispatch that is no longer to be executed; nothing was changed."""

    code = "stale_result"


class ResultTooEarly(StateError):
    """The result cannot be taken now: its run is about to begin anew, or its end is being written."""

    code = "result_too_early"
    retryable = True
    default_remedy = "send it again in some seconds"


class RunUnsuccessful(StateError):
    """The run that somebody waited for failed, or was cancelled; the text says why."""

    code = "run_unsuccessful"


class AccessError(PostroomError):
    """The caller has not proved who it is."""

    code = "access_denied"
    branch = "access error"


class TokenRequired(AccessError):
    """This server asks for a token and the call carried none."""

    code = "token_required"
    default_remedy = "send the agent's token in the Postroom-Agent-Token header"


class WrongToken(AccessError):
    """The token is not one this server gave out, or it was revoked, or it has expired."""

    code = "wrong_token"
    default_remedy = "make a new one with `postroom agents token` or `postroom tokens rotate`"


class IdentityMismatch(AccessError):
    """The token belongs to another agent than the one the call names."""

    code = "identity_mismatch"
    default_remedy = "name the agent that the token belongs to"


class WrongSignature(AccessError):
    """What came is not signed with the secret that it should be, or was signed too long ago."""

    code = "wrong_signature"


class NotPermitted(AccessError):
    """The caller is known but may not do this."""

    code = "not_permitted"


class InsufficientScope(AccessError):
    """The token is good, but has too few scopes for this; `details.needed` names what the call needs."""

    code = "insufficient_scope"
    default_remedy = "use a token that has them; the operator makes one with `postroom tokens create`"


class StaleClaim(PostroomError):
    """The claim was lost: its lease ended, or an interrupt came. Nothing was written."""

    code = "stale_claim"
    branch = "stale claim"


class RunFailure(PostroomError):
    """A run failed; `retryable` says whether it is tried again."""

    code = "run_failure"
    branch = "run failed"

    def __init__(self, message: str, *, retry_after_ms: int | None = None, **facts: object) -> None:
        super().__init__(message, **facts)  # type: ignore[arg-type]
        self.retry_after_ms = retry_after_ms
        """How long the other side asked to be left alone, in milliseconds."""


class ExecutorFailed(RunFailure):
    """The executor raised something that says nothing about trying again; it is tried again."""

    code = "executor_failed"
    retryable = True


class GiveUp(RunFailure):
    """Work raises it when no retry can help: the run fails at once, whatever attempts are left."""

    code = "gave_up"
    branch = "gave up"


class RunTimedOut(RunFailure):
    """The run was at work for as long as a run may be."""

    code = "run_timed_out"


class DeadlinePassed(RunFailure):
    """The run's deadline passed before it could be started."""

    code = "deadline_passed"


class ExecutorMisbehaved(RunFailure):
    """The executor returned what is no result."""

    code = "executor_misbehaved"


class PhaseError(RunFailure):
    """A phase of the agent loop failed on its own state; the run ends as it stands."""

    code = "phase_error"


class RunnerSecretMissing(RunFailure):
    """A runner's key or secret cannot be had; `value` names the variable or the file that was to hold it."""

    code = "runner_secret_missing"
    default_remedy = "set the variable for the server, and start it again"


class CommandError(RunFailure):
    """The program that runs the agent failed."""

    code = "command_error"
    branch = "command failed"


class CommandNotStarted(CommandError):
    """The program is not there, may not be executed, or has no working folder."""

    code = "command_not_started"
    default_remedy = "mend the agent's runner: its command and its working folder"


class PromptTooLong(CommandError):
    """The system takes no argument of this length, or none with such a character."""

    code = "prompt_too_long"
    default_remedy = "give the prompt by stdin or file: the field `prompt` of the agent's runner"


class CommandFailed(CommandError):
    """The program ended with an exit code that says it failed, or answered that it had."""

    code = "command_failed"


class CommandSaidNothing(CommandError):
    """The program ended well and put nothing out."""

    code = "command_said_nothing"
    default_remedy = "look at what the command prints; the recipe must be the one for the program"


class CommandTimedOut(CommandError):
    """The program took too long, or was silent for too long, and was ended."""

    code = "command_timed_out"
    default_remedy = "raise `timeout` or `idle_timeout` of the agent's runner, or ask for less"


class CommandFlooded(CommandError):
    """The program put out more than anybody reads, and was ended."""

    code = "command_flooded"
    default_remedy = "let the command write its output to a file"


class CommandNotEnded(CommandError):
    """Processes of the run could not be ended; they are named."""

    code = "command_not_ended"
    default_remedy = "end the processes that are named by hand"


class CommandBusy(CommandError):
    """The program asked to be tried later (exit code 75), or the system had no room to start it."""

    code = "command_busy"
    retryable = True


class CommandKilled(CommandError):
    """A signal that was not ours ended the program; the system does so when memory is short."""

    code = "command_killed"
    retryable = True


class AgentProtocolBroken(CommandError):
    """What the program put out is not the Agent Client Protocol, or not what is said next in it."""

    code = "agent_protocol_broken"
    default_remedy = "look at the command: it must start the agent in its ACP mode, and print nothing else"


class AgentStopped(CommandError):
    """The agent stopped before it was done: it refused, or reached a limit of its own; `value` says which."""

    code = "agent_stopped"
    default_remedy = "ask for less, or raise the agent's own limit"


class RemoteError(RunFailure):
    """The other server that executes an agent's runs failed."""

    code = "remote_error"


class RemoteUnavailable(RemoteError):
    """It could not be reached, was silent, or cannot work now; it is tried again."""

    code = "remote_unavailable"
    retryable = True


class RemoteRefused(RemoteError):
    """It does not take the run as it was sent."""

    code = "remote_refused"
    default_remedy = "look at the runner's address and secret, and at the other server's log"


class RemoteMisbehaved(RemoteError):
    """Its answer is none: no JSON of the kind that was agreed on, or too large."""

    code = "remote_misbehaved"


class RemoteFailed(RemoteError):
    """It took the run, and says that the run failed."""

    code = "remote_failed"


class RemoteTimedOut(RemoteError):
    """No result came in the time that the run may take."""

    code = "remote_timed_out"
    default_remedy = "give the runner a longer timeout, or look why the other server did not answer"


class InferenceError(RunFailure):
    """The model's side failed."""

    code = "inference_error"
    branch = "inference error"


class InferenceFailed(InferenceError):
    """A model call failed and nobody knows why."""

    code = "inference_failed"
    retryable = True


class ProviderFailed(InferenceError):
    """The provider answered with a failure of its own."""

    code = "provider_failed"
    branch = "provider failed"
    retryable = True


class RateLimited(InferenceError):
    """The provider asked for fewer calls."""

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
    """The answer's stream ended before the answer did."""

    code = "stream_interrupted"
    branch = "stream interrupted"
    retryable = True


class ContextOverflow(InferenceError):
    """The conversation is longer than the model takes."""

    code = "context_overflow"
    branch = "context overflow"


class RequestRefused(InferenceError):
    """The provider calls the request invalid."""

    code = "request_refused"
    branch = "request refused"


class Unauthorized(InferenceError):
    """The provider refuses the credentials, or the quota is used up."""

    code = "unauthorized"
    branch = "unauthorized"


class ModelNotFound(InferenceError):
    """The provider has no such model."""

    code = "model_not_found"
    branch = "model not found"


class NoModelEndpoint(ModelNotFound):
    """The address answered with a web page or other data in place of a model's answer."""

    code = "no_model_endpoint"
    branch = "no model endpoint"


class ContentFiltered(InferenceError):
    """The provider's policy withheld the answer."""

    code = "content_filtered"
    branch = "content filtered"


class InternalError(PostroomError):
    """A rule of our own was broken; nothing was changed."""

    code = "internal_rule_broken"
    branch = "internal error"


class StoreError(PostroomError):
    """The store could not do it; what was there before is there still."""

    code = "store_error"
    branch = "store error"
    default_remedy = "run `postroom doctor` on the server"


class StoreUnavailable(StoreError):
    """The store did not answer in time or is closed; the call may be repeated."""

    code = "store_unavailable"
    retryable = True


class StoreClosed(StoreUnavailable):
    """This process has closed the store; the call may be repeated when the store is open again."""

    code = "store_closed"
    default_remedy = "open the store again; if it is a server's, start the server again"


class StoreFull(StoreError):
    """The disk is full; nothing was written."""

    code = "store_full"
    retryable = True
    default_remedy = "free space on the disk that holds the database, and try again"


class StoreReadOnly(StoreError):
    """The database file or its folder cannot be written."""

    code = "store_read_only"
    default_remedy = "give the server's user write access to the database and its folder"


class StoreCorrupt(StoreError):
    """The database does not read back as it was written."""

    code = "store_corrupt"
    default_remedy = "stop the server and run `postroom restore`"


class RecordTooNew(StoreCorrupt):
    """A record holds a value that a newer release wrote: it is intact, and this release passes it over."""

    code = "record_too_new"
    default_remedy = "run the newer release, which can read the record"


class CommitUnknown(StoreError):
    """The connection broke while a commit was answered: it may or may not have been made."""

    code = "commit_unknown"
    retryable = True
    default_remedy = "look whether it was made, or repeat the call under its key"


class StoreHeld(StoreError):
    """Another process owns the database file."""

    code = "store_held"
    default_remedy = "stop the other server, or use it: commands write through the running one"


class SchemaTooNew(StoreError):
    """The database was written by a newer postroom."""

    code = "schema_too_new"
    default_remedy = "run the newer postroom again, or restore the backup taken before its migration"


class WrongStore(StoreError):
    """The database is missing, empty, older than its archive, another one, or its log is damaged."""

    code = "wrong_store"
    default_remedy = (
        "restore a backup (`postroom restore --force FILE`); or rebuild the database from the archive "
        "(`postroom rebuild database FILE`), which lacks what had not come to the archive yet, and restore "
        "that; or go on with what is there: `postroom up --new-store` sets the archive aside"
    )
    on_postgres: ClassVar[str] = (
        "restore a dump with pg_restore; or rebuild the database from the archive (`postroom rebuild "
        "database FILE`), which lacks what had not come to the archive yet, and copy that to a schema that "
        "is not there (`postroom database copy --from sqlite:FILE --to postgresql://...`; database_schema "
        "names it); or go on with what is there: `postroom up --new-store` sets the archive aside"
    )
    """What leads on where the store is on PostgreSQL: `postroom restore` is for SQLite."""


class ArchiveUnavailable(PostroomError):
    """Git could not write the archive now; mail goes on and the backlog drains later."""

    code = "archive_unavailable"
    retryable = True
    default_remedy = "run `postroom doctor`; the backlog drains by itself when Git works again"


class ServerUnavailable(PostroomError):
    """No server answered."""

    code = "server_unavailable"
    retryable = True
    default_remedy = "start it with `postroom up`"


class MissingExtra(PostroomError):
    """An optional part is not installed."""

    code = "missing_extra"


class ConfigError(PostroomError):
    """A setting is missing or wrong; nothing was started."""

    code = "config_error"
    default_remedy = "run `postroom config show` to see every setting and where it came from"


class CredentialRefused(ConfigError):
    """Another service refuses a token or a password; it is not asked with it again."""

    code = "credential_refused"
    default_remedy = "give it another one"


class ClientFileRefused(ConfigError):
    """A client's own file cannot be changed safely; it is as it was."""

    code = "client_file_refused"
    default_remedy = "mend the file, or write the entry by hand as docs/start.md shows"


class ClientUnfit(ConfigError):
    """A client is not on this machine, or too old for what setup writes; nothing of it was written."""

    code = "client_unfit"
    default_remedy = "install the client, or bring it up to date"


def why_unreadable(error: Exception) -> str:
    """Return in words why a small file of ours in JSON does not read, for people who know no Python."""
    if isinstance(error, OSError):
        return error.strerror or "the system does not say why"
    if isinstance(error, RecursionError) or (isinstance(error, ValueError) and type(error) is not ValueError):
        return "it is no JSON"  # of these `json` raises classes of its own
    return "a field is missing or of another kind"


def _branches(kind: type[PostroomError]) -> list[type[PostroomError]]:
    found = [kind]
    for child in kind.__subclasses__():
        if child.__module__ == __name__:  # a class of another module has the code of its parent
            found.extend(_branches(child))
    return found


def all_errors() -> list[type[PostroomError]]:
    """Return every error class of this module, one for each code, whatever other modules are imported."""
    return _branches(PostroomError)

"""The names that packages export: callers rely on them, so that a change is a decision and never an accident."""

import importlib
import pkgutil
import subprocess
import sys

import mcp_agent_mail
import postroom

EXPORTED = {
    "mcp_agent_mail.app": ["build_mcp_server"],
    "mcp_agent_mail.config": ["Settings", "clear_settings_cache", "get_settings"],
    "mcp_agent_mail.db": ["ensure_schema", "get_session", "reset_database_state"],
    "mcp_agent_mail.storage": [
        "ProjectArchive",
        "clear_repo_cache",
        "ensure_archive",
        "write_agent_profile",
        "write_message_bundle",
    ],
    "postroom": [
        "AgentRunResult",
        "Answer",
        "Budget",
        "BudgetScope",
        "BudgetWindow",
        "BusyPolicy",
        "GiveUp",
        "IdempotencyConflict",
        "InvalidArgument",
        "Item",
        "Limit",
        "LimitScope",
        "Mailbox",
        "MailboxClosed",
        "MailboxConfig",
        "MailboxForked",
        "Message",
        "PostroomError",
        "QueueFull",
        "RecordTooNew",
        "Recovery",
        "Run",
        "RunActivation",
        "RunDispatchExecutor",
        "RunEvent",
        "RunHandle",
        "RunState",
        "RunUnsuccessful",
        "StaleDecision",
        "State",
        "StoreClosed",
        "StoreUnavailable",
        "SubmissionRejected",
        "__version__",
    ],
    "postroom.executors.acp": ["AcpExecutor"],
    "postroom.executors.command": ["CommandExecutor", "CommandLimits"],
    "postroom.executors.remote": ["CALLBACKS", "LARGEST_BODY", "RemoteExecutor", "check_installed"],
    "postroom.gateway.platforms.base": [
        "AdapterState",
        "Attachment",
        "BasePlatformAdapter",
        "Button",
        "ButtonPress",
        "Card",
        "ChannelCapabilities",
        "Inbound",
        "MessageEvent",
        "MessageType",
        "Metadata",
        "Platform",
        "PlatformConfig",
        "Rate",
        "RateLimits",
        "SendErrorKind",
        "SendResult",
        "SessionSource",
        "refuse_address",
        "secret_remedy",
    ],
    "postroom.embedded": ["Answer", "Item", "Mailbox", "Run", "RunEvent", "RunHandle", "RunState", "State"],
    "postroom.sync": ["Answer", "Item", "Mailbox", "Run", "RunEvent", "RunHandle", "RunState", "State"],
    "postroom.runtime": [
        "AgentResolver",
        "AgentRuntime",
        "AgentSpec",
        "BackgroundEvent",
        "BackgroundTask",
        "BackgroundTaskTool",
        "BackgroundTasks",
        "CancelTaskTool",
        "FixedResolver",
        "FunctionTool",
        "MapResolver",
        "OpenAICompatibleModel",
        "ResolvedAgent",
        "ScriptedModel",
        "Tool",
        "ToolContext",
        "WakeSubmitter",
        "function_tool",
    ],
    "postroom.stores.postgres": ["PostgresStore"],
    "postroom.stores.sqlite": ["SqliteStore", "sqlite_release"],
    "postroom.testing": [
        "Execution",
        "ExecutionLog",
        "Hanging",
        "History",
        "ManualClock",
        "ManualMailbox",
        "ProcessDied",
        "check",
        "crashes",
        "fails",
        "mailbox",
        "record",
    ],
}


def modules() -> list[str]:
    names = ["gateway", "mcp_agent_mail", "postroom"]
    for package in (mcp_agent_mail, postroom):
        found = pkgutil.walk_packages(package.__path__, prefix=f"{package.__name__}.")
        names += [one.name for one in found if not one.name.endswith("__main__")]
    return names


def test_exported_names_are_those_that_were_decided_on() -> None:
    loaded = {name: importlib.import_module(name) for name in modules()}
    exported = {name: list(module.__all__) for name, module in loaded.items() if hasattr(module, "__all__")}
    assert exported == EXPORTED


def test_exported_names_are_seen_by_who_explores_a_module_that_was_just_loaded() -> None:
    code = "import postroom, sys; sys.exit(sorted(set(postroom.__all__) - set(dir(postroom))) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_exported_names_are_sorted_and_there() -> None:
    for name, exported in EXPORTED.items():
        module = importlib.import_module(name)
        assert exported == sorted(exported), name
        assert [one for one in exported if not hasattr(module, one)] == []

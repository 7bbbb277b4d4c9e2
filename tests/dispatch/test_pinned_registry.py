"""What a run is pinned to, and that a pin which stands for nothing fails closed."""

import pytest

from dispatch.conftest import Room
from dispatch_room import Counting, Deaf, Noop
from postroom.contracts.activation import RunActivation
from postroom.contracts.errors import InternalError, InvalidRecord
from postroom.contracts.executor import ResolvedRunPlan
from postroom.contracts.messages import Message
from postroom.contracts.registry import PinnedEntry, RegistrySet
from postroom.stores.registry import MemoryRegistryStore

PLAN = Message.user("plan this", id="message-1")
INVALID = "invalid pinned registry resolution id"


class Resolving(Deaf):
    """Takes every pin as it is; without one, its own."""

    def __init__(self, resolution_id: str) -> None:
        super().__init__()
        self._resolution_id = resolution_id
        self.asked: list[str | None] = []

    async def resolve(self, activation: RunActivation, *, pinned: str | None) -> ResolvedRunPlan:
        self.asked.append(pinned)
        return ResolvedRunPlan(resolution_id=pinned or self._resolution_id)


def agent_entry(agent_id: str, prompt: str) -> PinnedEntry:
    value = {"prompt": prompt}
    return PinnedEntry(kind="agent", id=agent_id, version=1, value=value, content_hash="sha256:0")


async def test_try_with_pinned_registry_rejects_invalid_scope(memory_room: Room) -> None:
    mailbox = memory_room.mailbox(Noop())
    for scope in (" ", "", "a\nb", "s" * 513):
        with pytest.raises(InvalidRecord):
            mailbox.with_pinned_registry(MemoryRegistryStore(), scope)
    assert await mailbox.materialize_pinned_registry_set("not-a-version") is None, "nothing was attached"


async def test_materialize_pinned_registry_rejects_invalid_resolution_id(memory_room: Room) -> None:
    mailbox = memory_room.mailbox(Noop()).with_pinned_registry(MemoryRegistryStore(), "default")
    for resolution_id in ("not-a-version", "", " 1", "-1", "1.0", "0x1", "\u0661"):
        with pytest.raises(InternalError, match=INVALID) as refused:
            await mailbox.materialize_pinned_registry_set(resolution_id)
        assert refused.value.describe().startswith("internal error: ")


async def test_a_resolution_id_of_thousands_of_digits_fails_closed(memory_room: Room) -> None:
    mailbox = memory_room.mailbox(Noop()).with_pinned_registry(MemoryRegistryStore(), "default")
    with pytest.raises(InternalError):
        await mailbox.materialize_pinned_registry_set("9" * 5_000)


async def test_prepare_run_for_dispatch_persists_resolved_resolution_id(room: Room) -> None:
    executor = Resolving("resolution-1")
    mailbox = room.mailbox(executor)
    request = RunActivation.new("thread-manifest", [PLAN], agent_id="agent-created")
    prepared = await mailbox.prepare_run_for_dispatch(request)
    run = await room.stores.threads.load_run(prepared.run_id)
    assert run is not None
    assert run.resolution_id == prepared.run_id
    assert prepared.activation.hints.resolution_id == prepared.run_id
    assert executor.asked == [prepared.run_id]


async def test_prepare_run_for_dispatch_uses_explicit_resolution_id_hint(room: Room) -> None:
    executor = Resolving("fallback-resolution")
    mailbox = room.mailbox(executor)
    request = RunActivation.new("thread-manifest", [PLAN], agent_id="agent-created")
    prepared = await mailbox.prepare_run_for_dispatch(request.hinted(resolution_id="42"))
    run = await room.stores.threads.load_run(prepared.run_id)
    assert run is not None
    assert run.resolution_id == "42"
    assert executor.asked == ["42"]


async def test_materialize_pinned_registry_set_fails_closed_for_missing_numeric_snapshot(
    memory_room: Room,
) -> None:
    registry = MemoryRegistryStore()
    mailbox = memory_room.mailbox(Counting()).with_pinned_registry(registry, "default")
    with pytest.raises(InternalError, match=INVALID):
        await mailbox.materialize_pinned_registry_set("draft-run-id")
    for number in range(1, 43):
        with pytest.raises(InternalError, match="missing registry version publication/default@42"):
            await mailbox.materialize_pinned_registry_set("42")
        await registry.publish("default", (agent_entry("writer", f"prompt {number}"),))
    await registry.publish("default", (agent_entry("writer", "newer"),))
    pinned = await mailbox.materialize_pinned_registry_set("42")
    assert pinned == RegistrySet(agents={"writer": {"prompt": "prompt 42"}})

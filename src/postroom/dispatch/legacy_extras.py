"""The older stored form of a request's extras, read and written for those who still have such rows."""

from dataclasses import dataclass

import msgspec

from postroom.contracts.activation import AdapterKind, InferenceOverride, RunActivation, RunMode, RunOptions
from postroom.contracts.errors import InvalidRecord
from postroom.contracts.messages import Json
from postroom.contracts.records import replace
from postroom.contracts.tools import ToolCallResume, ToolDescriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyRunSnapshotExtras:
    """The parts of a request that are not its messages, in the form in which older callers store them."""

    overrides: InferenceOverride | None = None
    decisions: tuple[tuple[str, ToolCallResume], ...] = ()
    frontend_tools: tuple[ToolDescriptor, ...] = ()
    continue_run_id: str | None = None
    run_id_hint: str | None = None
    dispatch_id_hint: str | None = None
    parent_thread_id: str | None = None
    transport_request_id: str | None = None
    run_mode: RunMode = RunMode.FOREGROUND
    adapter: AdapterKind = AdapterKind.INTERNAL

    @classmethod
    def from_request(cls, request: RunActivation) -> "LegacyRunSnapshotExtras":
        """Return the extras of a request."""
        return cls(
            overrides=request.options.overrides,
            decisions=request.decisions,
            frontend_tools=request.options.frontend_tools,
            continue_run_id=request.continue_run_id,
            run_id_hint=request.hints.run_id,
            dispatch_id_hint=request.hints.dispatch_id,
            parent_thread_id=request.trace.parent_thread_id,
            transport_request_id=request.trace.transport_request_id,
            run_mode=request.trace.run_mode,
            adapter=request.trace.adapter,
        )

    def apply_to(self, request: RunActivation) -> RunActivation:
        """Return the request with these extras."""
        applied = request.continuing(self.continue_run_id).hinted(
            run_id=self.run_id_hint, dispatch_id=self.dispatch_id_hint
        )
        return replace(
            applied,
            decisions=self.decisions,
            options=RunOptions(overrides=self.overrides, frontend_tools=self.frontend_tools),
        ).traced(
            parent_thread_id=self.parent_thread_id,
            transport_request_id=self.transport_request_id,
            run_mode=self.run_mode,
            adapter=self.adapter,
        )

    def to_value(self) -> dict[str, Json] | None:
        """Return the extras as plain JSON data, or None when there are none."""
        if self == LegacyRunSnapshotExtras():
            return None
        value: dict[str, Json] = msgspec.to_builtins(self)
        return value

    @classmethod
    def from_value(cls, value: Json) -> "LegacyRunSnapshotExtras":
        """Read extras from plain JSON data.

        Raises:
            InvalidRecord: the data has another form.
        """
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            raise InvalidRecord(f"stored extras of a request cannot be read: {error}") from error

"""Tools: their descriptions for the model, the validation of arguments, and tools made from functions."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from postroom.contracts.agent_events import EventSink, RunIdentity, ToolCallStreamDelta
from postroom.contracts.dispatch import Claim
from postroom.contracts.files import RunFiles
from postroom.contracts.messages import Json
from postroom.contracts.tools import Suspension, ToolCallResume, ToolDescriptor, ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The context of a tool call, which a tool receives in addition to the arguments.

    `decision` is the person's decision about a suspended call, or None if the call was never suspended.
    """

    identity: RunIdentity
    call_id: str
    tool_name: str
    sink: EventSink
    decision: ToolCallResume | None = None
    claim: Claim | None = None
    """The claim of the run's execution, which changes by the tool must present."""
    files: RunFiles | None = None
    """Accepts files for the run's chat, or None if the chat accepts no files."""

    async def show(self, delta: str) -> None:
        """Show output to people, but not to the model, while the tool is working."""
        await self.sink.emit(ToolCallStreamDelta(id=self.call_id, name=self.tool_name, delta=delta))


class Tool(Protocol):
    """A tool that the model can call."""

    @property
    def descriptor(self) -> ToolDescriptor:
        """The description of the tool for the model."""
        ...

    async def execute(self, arguments: dict[str, Json], context: ToolContext) -> ToolResult:
        """Execute a tool call; the arguments match the schema in the descriptor.

        An exception becomes an error result for the model. After a crash, a tool call may be executed again,
        so a repeated call must have no second effect. A call that exceeds the time limit is cancelled.
        """
        ...


class FunctionTool:
    """A tool that calls an async function with keyword arguments."""

    def __init__(
        self,
        function: Callable[..., Awaitable[Json]],
        descriptor: ToolDescriptor,
        *,
        needs_approval: bool = False,
    ) -> None:
        self._function = function
        self.descriptor = descriptor
        self._needs_approval = needs_approval
        self._takes_context = "context" in inspect.signature(function).parameters

    async def execute(self, arguments: dict[str, Json], context: ToolContext) -> ToolResult:
        """Call the function, or ask for approval if a person must approve the call first."""
        name = self.descriptor.name
        if self._needs_approval and context.decision is None:
            question = Suspension(
                id=f"ask_{context.call_id}",
                action="approve",
                message=f"May {name} be called?",
                parameters=arguments,
            )
            return ToolResult.suspended(name, question)
        extra = {"context": context} if self._takes_context else {}
        answer = await self._function(**{**arguments, **extra})
        return answer if isinstance(answer, ToolResult) else ToolResult.success(name, answer)


def function_tool(
    parameters: dict[str, Json] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    needs_approval: bool = False,
) -> Callable[[Callable[..., Awaitable[Json]]], FunctionTool]:
    """Return a decorator that makes an async function a tool.

    `parameters` is the JSON schema of the arguments. The default name is the function's name, and the default
    description is the function's docstring. A parameter with the name `context` gets the `ToolContext`. The
    function returns JSON data or a `ToolResult`. If `needs_approval` is True, a person must approve each
    call.
    """

    def made(function: Callable[..., Awaitable[Json]]) -> FunctionTool:
        own = getattr(function, "__name__", "tool")
        chosen = name or own
        descriptor = ToolDescriptor(
            id=chosen,
            name=chosen,
            description=inspect.getdoc(function) or "" if description is None else description,
            parameters=parameters or {"type": "object", "properties": {}},
        )
        return FunctionTool(function, descriptor, needs_approval=needs_approval)

    return made


_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": (int, float),
    "integer": (int,),
}


def find_violation(value: Json, schema: Json, *, where: str = "arguments") -> str | None:
    """Return a sentence that describes how a value violates a JSON schema, or None for a valid value.

    The keywords type, enum, const, anyOf, required, properties, additionalProperties and items are checked.
    """
    if not isinstance(schema, dict):
        return None
    type_name = schema.get("type")
    kinds = [type_name] if isinstance(type_name, str) else type_name
    if isinstance(kinds, list) and not any(_is(value, kind) for kind in kinds):
        return f"{where} must be of type {' or '.join(map(str, kinds))}"
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    # Compare two values as JSON does, where true is not equal to 1.
    if isinstance(allowed, list) and not any(
        (bool(value == choice) and isinstance(value, bool) == isinstance(choice, bool)) for choice in allowed
    ):
        return f"{where} must be one of {allowed!r}"
    choices = schema.get("anyOf")
    if isinstance(choices, list) and all(find_violation(value, choice, where=where) for choice in choices):
        return f"{where} matches none of the allowed forms"
    if isinstance(value, dict):
        properties = schema.get("properties") or {}
        missing = [name for name in schema.get("required") or () if name not in value]
        if missing:
            return f"{where} must have {', '.join(missing)}"
        others = schema.get("additionalProperties", True)
        for name, item in value.items():
            if name not in properties and others is False:
                return f"{where} must not have {name!r}; it may have: {', '.join(properties) or 'nothing'}"
            if problem := find_violation(item, properties.get(name, others), where=f"{where}.{name}"):
                return problem
    if isinstance(value, list) and "items" in schema:
        for at, item in enumerate(value):
            if problem := find_violation(item, schema["items"], where=f"{where}[{at}]"):
                return problem
    return None


def _is(value: Json, kind: str) -> bool:
    if kind in ("number", "integer") and isinstance(value, bool):
        return False
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, (object,)))

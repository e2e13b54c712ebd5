"""Middleware for every call: the audit log, the list of visible tools, and secret masking.

The log has one JSON object per line, on disk before a call starts, and again after it returns.
"""

import fcntl
import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, cast

import anyio
from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.types import INTERNAL_ERROR
from pydantic import BaseModel

from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.memory import OWNER_ONLY, open_private
from gemma_serving.scripts.agent.consent import can_prompt
from gemma_serving.scripts.agent.context import ERROR_NOTE, AgentContext
from gemma_serving.scripts.agent.presenting import MORE, each_text, present_result
from gemma_serving.scripts.agent.runs import CANNOT_BE_LEFT, CURRENT
from gemma_serving.scripts.cli.command import print_progress

Outcome = Literal["begun", "left", "done", "asked", "failed", "refused", "cancelled"]
SCHEMA_VERSION: Final = 4
WAIT: Final = "wait"
DELETES: Final = "teardown"
"""Tool that only a client with forms is shown."""
_DETAIL_CHARACTERS: Final = 500
_MOST_CHARACTERS: Final = 4000
_PRIVATE: Final = frozenset({"prompt", "system", "code"})
"""Arguments with user text or a code. Only their length and a hash are recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One line. Arguments and details are without secrets."""

    call: str
    tool: str
    arguments: Mapping[str, object]
    outcome: Outcome
    detail: str = ""
    plan_id: str | None = None
    usd_per_hour: float | None = None
    """Price of the resources that the call started, in USD per hour."""
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFile:
    """The file, readable only by its owner, not a link, which could redirect the record."""

    path: Path

    def write(self, entry: AuditEntry) -> None:
        """Append a line and wait until it is on disk. Raises ScriptError: without a record, nothing may happen."""
        line = json.dumps(asdict(entry), ensure_ascii=False, default=str) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(open_private(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "wb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # another server may write to it
                os.fchmod(file.fileno(), OWNER_ONLY)
                file.write(line.encode(errors="backslashreplace"))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ScriptError(
                f"Cannot write the audit file {self.path} ({error.strerror}), so nothing was done. Free disk space or "
                "start the agent with --audit FILE."
            ) from None


def recorded(arguments: Mapping[str, object]) -> Mapping[str, object]:
    """Return arguments in audit form: user text as length and hash, and long values cut."""
    kept = {key: _digest(value) if key in _PRIVATE else value for key, value in arguments.items()}
    text = _text(kept)
    return kept if len(text) <= _MOST_CHARACTERS else {"begins": text[:_DETAIL_CHARACTERS], **_digest(arguments)}


def _digest(value: object) -> dict[str, object]:
    text = _text(value)
    found = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
    return {"characters": len(text), "sha256": found[:16]}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


_SEALED: Final = "requestState"
"""State of a call that prompts the user, encrypted by the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """Middleware of the server."""

    agent: AgentContext
    audit: AuditFile

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Handle one message."""
        if ctx.request_id is not None and ctx.method == "tools/call":
            return await self._recorded(ctx, call_next)
        if ctx.method == "resources/read":
            return self._masked(_plain(await self._next(ctx, call_next)))
        result = await call_next(ctx)
        if ctx.method == "tools/list" and not can_prompt(ctx.session.client_capabilities):
            listed = _plain(result)
            tools = [as_mapping(tool) for tool in as_sequence(listed.get("tools"))]
            return {**listed, "tools": [dict(tool) for tool in tools if tool.get("name") != DELETES]}
        return result

    async def _recorded(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        params = as_mapping(ctx.params)
        given = as_mapping(params.get("arguments"))
        call = uuid.uuid4().hex[:12]
        tool = str(params.get("name") or "")
        arguments = self._masked(given)

        def entry(outcome: Outcome, detail: str = "", result: Mapping[str, object] | None = None) -> AuditEntry:
            found = result or {}
            rate = found.get("usd_per_hour")
            return AuditEntry(
                call=call,
                tool=self.agent.mask(tool)[:80],
                arguments=recorded(arguments) if outcome == "begun" else {},
                outcome=outcome,
                detail=self.agent.mask(detail)[:_DETAIL_CHARACTERS],
                plan_id=str(found.get("plan") or arguments.get("plan") or "") or None,
                usd_per_hour=rate if isinstance(rate, int | float) else None,
            )

        try:
            self.audit.write(entry("begun"))
        except ScriptError as error:
            raise MCPError(code=INTERNAL_ERROR, message=str(error)) from None

        stack = given.get("stack")
        stack = stack if isinstance(stack, str) else None

        async def handled() -> dict[str, Any]:
            runs, run = self.agent.runs, CURRENT.get()
            active = runs.active(stack, run) if stack else ""
            is_whole = tool == WAIT and runs.is_whole(given.get("run"))
            try:
                answer = _plain(await self._next(ctx, call_next))
                # The server sealed this state, and accepts only the same text again. Every 800th looks like a token.
                sealed = {key: value for key, value in answer.items() if key == _SEALED}
                whole = {**self._masked(answer), **sealed}
                result = present_result(whole, active=active, run=run.id if run else "", is_whole=is_whole)
                if run is not None and MORE in as_mapping(result.get("structuredContent")):
                    run.whole = whole
            except anyio.get_cancelled_exc_class():
                self._end(entry("cancelled", run.stopped if run else ""))
                raise
            except BaseException as error:
                self._end(entry("failed", f"{type(error).__name__}: {error}"))
                raise
            self._end(entry(*_ended(tool, result)))
            return result

        if tool in CANNOT_BE_LEFT:
            return await handled()
        runs = self.agent.runs
        run = runs.begin(tool, stack)
        return await runs.attend(run, ctx.lifespan_context, handled, lambda why: self._end(entry("left", why)))

    async def _next(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        try:
            return await call_next(ctx)
        except MCPError as error:
            data = each_text(error.error.data, self.agent.mask)
            raise MCPError(code=error.error.code, message=self.agent.mask(error.error.message), data=data) from None

    def _masked(self, value: Mapping[str, object]) -> dict[str, Any]:
        return cast("dict[str, Any]", each_text(value, self.agent.mask))

    def _end(self, entry: AuditEntry) -> None:
        """Record the result of a call. The work is done, so its answer is returned in any case."""
        try:
            self.audit.write(entry)
        except ScriptError:
            print_progress(
                "agent",
                f"Cannot write to the audit file {self.audit.path}: the result of call {entry.call} "
                f"({entry.tool}: {entry.outcome}) is missing. "
                "Further calls are rejected until the file is writable.",
            )


def _plain(result: HandlerResult) -> Mapping[str, object]:
    """Return a result in its wire format."""
    if isinstance(result, BaseModel):
        return cast("Mapping[str, object]", result.model_dump(mode="json", by_alias=True, exclude_none=True))
    return as_mapping(result)


def _ended(tool: str, result: Mapping[str, object]) -> tuple[Outcome, str, Mapping[str, object]]:
    """Return the outcome of a call, its reason, and its content. Work is recorded once, with its own call."""
    if "inputRequests" in result:
        return "asked", "the user is prompted", {}
    content = as_mapping(result.get("structuredContent"))
    if result.get("isError"):
        text = "".join(str(as_mapping(item).get("text") or "") for item in as_sequence(result.get("content")))
        return "failed" if text.endswith(ERROR_NOTE) else "refused", text, content
    if tool in CANNOT_BE_LEFT:
        return "done", "", {}
    if content.get("ok") is False:
        said = as_mapping(content.get("reason") or content.get("said"))
        return "failed", str(said.get("text") or "").strip()[-_DETAIL_CHARACTERS:], content
    return "done", "", content

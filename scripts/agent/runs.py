"""Detached work. A long call returns a handle, and its work continues in a task of the server.

Only `cancel` and the exit of the server stop it, not a client that stops waiting.
"""

import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

import anyio
from anyio.abc import TaskGroup
from mcp.server.mcpserver import Context
from mcp.types import CallToolResult

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.scripts.agent.permissions import ANSWER_WITHIN_S
from gemma_serving.scripts.agent.presenting import present_result, untrusted
from gemma_serving.scripts.cli.command import print_progress

CANNOT_BE_LEFT: Final = frozenset({"wait", "cancel"})
"""Tools about other work."""
_MOST_WHOLE: Final = 20
"""Newest answers that are kept whole."""
ASK_A_PERSON: Final = frozenset({"up", "stage_weights", "teardown"})
"""Tools whose work starts when the user has approved it. Until then, it cannot be detached."""
QUESTION_S: Final = 600.0
"""Longest wait for the user's answer, as long as a code is valid."""

WorkOutcome = Literal["running", "ending", "done", "failed", "cancelled"]
Handler = Callable[[], Awaitable[dict[str, Any]]]
"""Does the work of a call and returns its result in wire format."""


_NEXT: Final[Mapping[WorkOutcome, str]] = {
    "running": "It continues regardless of waiting. Call wait with run {run}; cancel stops it.",
    "ending": "It is stopping, as after Ctrl-C. Call wait with run {run}.",
    "done": "Call wait with run {run} for its answer.",
    "failed": "Call wait with run {run} for its answer.",
    "cancelled": "It was stopped as Ctrl-C does. Check status for its results.",
}


@dataclass(slots=True, kw_only=True)
class AgentRun:
    """Work of one call."""

    tool: str
    stack: str | None
    id: str = field(default_factory=lambda: f"run-{secrets.token_hex(4)}")
    began: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    began_s: float = 0.0
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    working: anyio.Event = field(default_factory=anyio.Event)
    """Set when the work starts, which is after the question if the user is prompted."""
    question: str = ""
    """The question to the user, of work that needs their approval."""
    ended: anyio.Event = field(default_factory=anyio.Event)
    changed: anyio.Event = field(default_factory=anyio.Event)
    changes_stack: bool = False
    left: bool = False
    """True if its call returned, or was abandoned, before the work finished."""
    read: bool = False
    stopped: str = ""
    result: dict[str, Any] | None = None
    whole: dict[str, Any] | None = None
    """The whole answer, if the one that was sent is cut."""
    error: Exception | None = None
    ended_s: float | None = None
    done: float = 0.0
    step: str | None = None
    says: str = ""

    async def work(self, handler: Handler) -> None:
        """Do the work and store its result."""
        CURRENT.set(self)
        try:
            with self.scope:
                self.result = await handler()
        except Exception as error:  # noqa: BLE001 - raised when the result is requested
            self.error = error
        finally:
            self.ended_s = time.monotonic()
            for event in (self.working, self.ended, self.changed):
                event.set()

    def note(self, done: float, text: str, step: str | None) -> None:
        """Store a line of progress. A new step discards the line of the previous one."""
        self.done = done
        if step is not None and step != self.step:
            self.step, self.says = step, ""
        if text != step:
            self.says = text
        changed, self.changed = self.changed, anyio.Event()
        changed.set()

    def stop(self, who: str) -> None:
        """Stop it as Ctrl-C does. It takes as long as the engine needs to write its state."""
        if not self.ended.is_set():
            self.stopped = self.stopped or who
            self.scope.cancel()

    @property
    def outcome(self) -> WorkOutcome:
        """Current state."""
        if not self.ended.is_set():
            return "ending" if self.stopped else "running"
        if self.result is None:
            return "failed" if self.error is not None else "cancelled"
        content = as_mapping(self.result.get("structuredContent"))
        return "failed" if self.result.get("isError") or content.get("ok") is False else "done"

    @property
    def unanswered(self) -> str:
        """What work left undone whose question nobody answered, as sentences; empty for other work."""
        if self.outcome != "cancelled" or not self.question or self.changes_stack:
            return ""
        valid = ", and its plan stays valid" if self.tool == "up" else ""
        return f"The user did not answer, so {self.name} changed nothing{valid}. Call {self.tool} again when they can answer."

    @property
    def name(self) -> str:
        """Name for use in a sentence, such as `up of stack x`."""
        return f"{self.tool} of stack {self.stack}" if self.stack else self.tool

    def shown(self) -> dict[str, object]:
        """Return its state."""
        now_s = time.monotonic() if self.ended_s is None else self.ended_s
        return {
            "run": self.id,
            "tool": self.tool,
            "stack": self.stack,
            "running": not self.ended.is_set(),
            "outcome": self.outcome,
            "step": self.step,
            "says": untrusted(self.tool, self.says) if self.says else None,
            "since": self.began,
            "elapsed_s": round(now_s - self.began_s, 1),
            "next": self.unanswered or _NEXT[self.outcome].format(run=self.id),
        }

    def answer(self, active: str = "") -> dict[str, Any]:
        """Return its tool's answer, or its state if it has none. Raises the error with which it failed.

        `active`: as of `present_result`.
        """
        self.read = self.ended.is_set()
        if self.error is not None:
            raise self.error
        if self.result is not None:
            return self.result
        if self.unanswered:
            return {"content": [{"type": "text", "text": self.unanswered}], "isError": True}
        handle = CallToolResult(content=[], structured_content=self.shown())
        return present_result(handle.model_dump(mode="json", by_alias=True, exclude_none=True), active=active)


CURRENT: Final[ContextVar[AgentRun | None]] = ContextVar("CURRENT", default=None)


async def report(context: Context[Any, Any], done: float, text: str, *, step: str | None) -> None:
    """Store a line of progress with the work, and forward it to the waiting client."""
    run = CURRENT.get()
    if run is not None:
        run.note(done, text, step)
    if run is None or not run.left:
        await context.report_progress(done, message=text)


@dataclass(slots=True, kw_only=True)
class Runs:
    """Running and recently finished work of this server."""

    within_s: float = ANSWER_WITHIN_S
    _runs: dict[str, AgentRun] = field(default_factory=dict[str, AgentRun])

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[TaskGroup]:
        """Yield the task group of the server's work, which stops it at the end as Ctrl-C does."""
        async with anyio.create_task_group() as group:
            try:
                yield group
            finally:
                for run in [run for run in self._runs.values() if not run.ended.is_set()]:
                    print_progress("agent", f"stopping {run.name} ({run.id}) because the server exits")
                    run.stop("the server exited")

    def begin(self, tool: str, stack: str | None) -> AgentRun:
        """Add the work of a call."""
        run = AgentRun(tool=tool, stack=stack, began_s=time.monotonic())
        if tool not in ASK_A_PERSON:
            run.working.set()
        self._runs[run.id] = run
        return run

    async def attend(
        self, run: AgentRun, group: TaskGroup, handler: Handler, leave: Callable[[str], None]
    ) -> dict[str, Any]:
        """Do the work of a call in the task group of the server, and return its answer, or a handle if it takes longer.

        `leave` is called with the reason if the call returns before the work has finished.
        """
        group.start_soon(run.work, handler)
        try:
            with anyio.move_on_after(QUESTION_S):
                await run.working.wait()
            if not run.working.is_set():
                run.stop("the user did not answer")
                await run.ended.wait()
            with anyio.move_on_after(self.within_s):
                await run.ended.wait()
        except anyio.get_cancelled_exc_class():
            if not run.working.is_set():
                run.stop("the client cancelled the call")
            elif not run.ended.is_set():
                leave(f"the client stopped waiting; {run.id} continues")
            run.left = True  # wait returns an answer that comes later
            raise
        if run.ended.is_set():
            self._forget(run)
            return run.answer()
        run.left = True
        leave(f"{run.id} continues")
        return run.answer(self.active(run.stack, run) if run.stack else "")

    def _forget(self, run: AgentRun) -> None:
        """Forget answered work, but not the newest whole answers."""
        if run.whole is None:
            del self._runs[run.id]
            return
        kept = [one.id for one in self._runs.values() if one.whole is not None]
        for old in kept[:-_MOST_WHOLE]:
            del self._runs[old]

    async def wait(self, context: Context[Any, Any], handle: str, limit_s: float | None) -> dict[str, Any]:
        """Wait for work, and return its answer, or its state if it takes longer. Raises CommandRefusedError."""
        run = self._find(handle)
        with anyio.move_on_after(self.within_s if limit_s is None else limit_s):
            while not run.ended.is_set():
                changed = run.changed
                await context.report_progress(run.done, message=run.says or run.step or run.name)
                await changed.wait()
        return run.whole if run.read and run.whole is not None else run.answer()

    def is_whole(self, handle: object) -> bool:
        """Return whether the whole answer of some work is asked for, because its cut one was read."""
        run = self._runs.get(str(handle))
        return run is not None and run.read and run.whole is not None

    async def cancel(self, handle: str) -> dict[str, Any]:
        """Stop work as Ctrl-C does, wait for it for a while, and return the result. Raises CommandRefusedError."""
        run = self._find(handle)
        run.stop("cancel")
        with anyio.move_on_after(self.within_s):
            await run.ended.wait()
        return run.answer()

    def claim(self, stack: str) -> None:
        """Register that the current call changes a stack. Raises CommandRefusedError if other work does."""
        mine = CURRENT.get()
        if run := self._changing(stack, mine):
            raise CommandRefusedError(
                f"{run.name} is already running as {run.id}, since {run.began}. Nothing was done. "
                "Call wait with that run, or cancel to stop it."
            )
        if mine is not None:
            mine.stack, mine.changes_stack = stack, True
            mine.working.set()

    def active(self, stack: str, mine: AgentRun | None) -> str:
        """Return that other work than the call's own changes a stack now, as a sentence; empty if none does."""
        run = self._changing(stack, mine)
        return "" if run is None else f"{run.name} runs as {run.id}, call wait. It may change what this answer says."

    def _changing(self, stack: str, mine: AgentRun | None) -> AgentRun | None:
        """Return the other work that changes a stack now."""
        known = [run for run in self._runs.values() if run.changes_stack and run.stack == stack]
        return next((run for run in known if run is not mine and not run.ended.is_set()), None)

    def shown(self, stack: str | None = None) -> list[dict[str, object]]:
        """Return the state of a stack's work, or of all work. Finished work is shown until its answer was read."""
        others = [run for run in self._runs.values() if run is not CURRENT.get() and not run.read]
        return [run.shown() for run in others if stack in {None, run.stack} and run.working.is_set()]

    def _find(self, handle: str) -> AgentRun:
        run = self._runs.get(handle)
        if run is None:
            known = ", ".join(f"{one.id} ({one.name}: {one.outcome})" for one in self._runs.values()) or "none"
            raise CommandRefusedError(f"Run {handle[:40]!r} not found in this server. Runs: {known}.")
        return run

"""Around every call: what is written to the audit file, and which tools a client is shown."""

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from pydantic import BaseModel

from scripts.agent.audit import AuditEntry, AuditFile, Outcome, seconds_since
from scripts.agent.deleting import TOOL, can_ask
from scripts.agent.workbench import Workbench
from scripts.pulumi.deployment import as_mapping, as_sequence

_DETAIL_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """Middleware of the server."""

    bench: Workbench
    audit: AuditFile

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Handle one message."""
        if ctx.request_id is not None and ctx.method == "tools/call":
            return await self._recorded(ctx, call_next)
        result = await call_next(ctx)
        if ctx.method == "tools/list" and not can_ask(ctx.session.client_capabilities):
            listed = dict(_plain(result))
            return {
                **listed,
                "tools": [tool for tool in as_sequence(listed.get("tools")) if as_mapping(tool).get("name") != TOOL],
            }
        return result

    async def _recorded(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        begun_s, params = time.monotonic(), as_mapping(ctx.params)
        call, tool = uuid.uuid4().hex[:12], str(params.get("name") or "")[:80]
        arguments = self._masked(as_mapping(params.get("arguments")))

        def write(outcome: Outcome, detail: str = "", result: Mapping[str, object] | None = None) -> None:
            found = result or {}
            rate = found.get("usd_per_hour")
            self.audit.write(
                AuditEntry(
                    call=call,
                    tool=tool,
                    arguments=arguments,
                    outcome=outcome,
                    detail=self.bench.mask(detail)[:_DETAIL_CHARACTERS],
                    plan_id=str(found.get("plan_id") or arguments.get("plan_id") or "") or None,
                    usd_per_hour=rate if isinstance(rate, int | float) else None,
                    spent_usd=round(self.bench.purse.spent_usd(), 4),
                    client=_client(ctx),
                    elapsed_s=seconds_since(begun_s),
                )
            )

        write("begun")  # raises where it cannot: nothing is done without a record
        try:
            result = await call_next(ctx)
        except anyio.get_cancelled_exc_class():
            write("cancelled")
            raise
        except BaseException as error:
            write("failed", f"{type(error).__name__}: {error}")
            raise
        outcome, detail, content = _ended(_plain(result))
        write(outcome, detail, content)
        return result

    def _masked(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """Return arguments without secrets."""
        text = self.bench.mask(json.dumps(dict(arguments), default=str, ensure_ascii=False))
        try:
            return as_mapping(cast("object", json.loads(text)))
        except ValueError:
            return {"masked": text}


def _plain(result: HandlerResult) -> Mapping[str, object]:
    """Return a result as it goes over the wire."""
    if isinstance(result, BaseModel):
        return cast("Mapping[str, object]", result.model_dump(mode="json", by_alias=True, exclude_none=True))
    return as_mapping(result)


def _ended(result: Mapping[str, object]) -> tuple[Outcome, str, Mapping[str, object]]:
    """Return how a call ended, why, and its structured content."""
    if "inputRequests" in result:
        return "asked", "a person is asked", {}
    content = as_mapping(result.get("structuredContent"))
    if result.get("isError"):
        texts = [str(as_mapping(item).get("text") or "") for item in as_sequence(result.get("content"))]
        return "refused", "".join(texts[:1]), content
    if content.get("ok") is False:
        said = as_mapping(content.get("reason") or content.get("said"))
        return "failed", str(said.get("text") or "").strip()[-_DETAIL_CHARACTERS:], content
    return "done", "", content


def _client(ctx: ServerRequestContext[Any, Any]) -> str:
    found = ctx.session.client_params
    return "" if found is None else f"{found.client_info.name} {found.client_info.version}"[:80]

"""The evaluator as a child process: one JSON object per line in each direction. Times are milliseconds since 1970.

| request | response |
| --- | --- |
| `{"op": "check", "expr": E}` | nothing |
| `{"op": "rule", "name": N, "expr": E, "forS": S, "labels": {}}` | nothing; a rule of that name is replaced |
| `{"op": "scrape", "atMs": T, "text": EXPOSITION, "labels": {}, "up": true}` | nothing |
| `{"op": "eval", "atMs": T, "names": [N]}` | `alerts` pending and firing, `errors` by rule |

Any request can be answered with `{"error": TEXT}`, in Prometheus' own words.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

_LINE_LIMIT_BYTES: Final = 64 * 1024 * 1024
_STOP_LIMIT_S: Final = 5.0


class ExpressionError(Exception):
    """Prometheus rejects a request. The message is its own."""


class EvaluatorExitedError(Exception):
    """The program has exited. What it stored is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One series of a rule that is pending or firing. `active_ms`: since when its expression holds."""

    rule: str
    firing: bool
    labels: Mapping[str, str]
    value: str
    active_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Result of an evaluation: the alerts, and Prometheus' error message of each rule that failed."""

    alerts: tuple[Alert, ...]
    errors: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """An exposition of one target with its labels. `up` None: not a scrape, no `up` is stored."""

    text: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    up: bool | None = None


class Evaluator:
    """One running evaluator, with series of its own. It exits when this process does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._turn = asyncio.Lock()

    @classmethod
    async def start(cls, program: Path, folder: Path) -> "Evaluator":
        """Start the program. It keeps its series in a temporary folder below `folder`, which must exist, and removes that one at its exit."""
        process = await asyncio.create_subprocess_exec(
            str(program),
            env={"TMPDIR": str(folder)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_LIMIT_BYTES,
            start_new_session=True,
        )
        return cls(process)

    async def check(self, expression: str) -> None:
        """Parse an expression. Raises ExpressionError."""
        await self._ask(op="check", expr=expression)

    async def set_rule(self, name: str, expression: str, *, for_s: float, labels: Mapping[str, str]) -> None:
        """Add a rule, or replace the one of that name. Raises ExpressionError."""
        await self._ask(op="rule", name=name, expr=expression, forS=for_s, labels=dict(labels))

    async def scrape(self, at_ms: int, scrape: Scrape) -> None:
        """Store a scrape. Raises ExpressionError if the text is not an exposition."""
        await self._ask(op="scrape", atMs=at_ms, text=scrape.text, labels=dict(scrape.labels), up=scrape.up)

    async def evaluate(self, at_ms: int, names: Sequence[str]) -> Evaluated:
        """Evaluate rules at one time."""
        answer = await self._ask(op="eval", atMs=at_ms, names=list(names))
        alerts = tuple(
            Alert(
                rule=each["rule"],
                firing=each["state"] == "firing",
                labels=each["labels"],
                value=each["value"],
                active_ms=each["activeAtMs"],
            )
            for each in answer["alerts"]
        )
        return Evaluated(alerts=alerts, errors=answer["errors"])

    async def stop(self) -> None:
        """Close the program's input, which ends it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_LIMIT_S)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _ask(self, **request: object) -> dict[str, Any]:
        sink, source = self._process.stdin, self._process.stdout
        assert sink is not None
        assert source is not None
        async with self._turn:
            line = b""
            with suppress(ConnectionError):
                sink.write(json.dumps(request).encode() + b"\n")
                await sink.drain()
                line = await source.readline()
        if not line:
            raise EvaluatorExitedError("The evaluator exited.")
        answer = cast("dict[str, Any]", json.loads(line))
        if "error" in answer:
            raise ExpressionError(str(answer["error"]))
        return answer

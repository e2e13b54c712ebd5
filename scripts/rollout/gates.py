"""Checks of a revision through the URL of its tag: the smoke checks and a short benchmark."""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from contracts.errors import ScriptError
from contracts.outputs import StackOutputs
from engine.children import run_async
from loadtest.progress import reporter_for_stderr
from loadtest.settings import SweepSettings
from loadtest.steady import judged
from loadtest.store import read_results
from loadtest.sweep import run_sweep, seed_of
from loadtest.traffic.points import Sweep
from scripts.bench.face import refused
from scripts.cli.access import AccessError, IdTokenSource, ServerAccess, open_stack_access
from scripts.cli.reach import endpoint_of
from scripts.rollout.decisions import Measured
from scripts.smoke.face import run_smoke, stack_target

CONCURRENCY: Final = 4
INPUT_TOKENS: Final = 128
OUTPUT_TOKENS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TagGates:
    """Checks of the stack's server at the URL of a tag.

    The audience of identity tokens is the service's own URL, which Cloud Run also accepts for the URL of a tag.
    """

    stack: str
    outputs: StackOutputs
    service_url: str
    say: Callable[[str], None]

    def smoke(self, url: str) -> str:
        """Run all smoke checks with the thresholds of the stack's outputs. Return the failures as a sentence; empty if none.

        Raises AccessError if the checks could not reach the server.
        """
        with self._open() as access:
            report = run_smoke(self._at(access, url), stack_target(self.stack, self.outputs), self.say)
        if report.interrupted:
            raise KeyboardInterrupt
        if report.verdict == "unreachable":
            raise AccessError("; ".join(check.outcome.detail for check in report.unreached))
        if report.passed:
            return ""
        failed = [f"{check.name}: {check.outcome.measured} {check.outcome.detail}".strip() for check in report.failed]
        return f"The smoke checks failed: {'; '.join(failed) or 'some did not run'}."

    def measure(self, url: str, requests: int) -> Measured:
        """Send requests of one length, four concurrently, and return the metrics.

        Raises ScriptError without metrics, and AccessError if the server could not be reached.
        """
        with self._open() as access, tempfile.TemporaryDirectory(prefix="rollout-") as folder:
            settings = SweepSettings(
                url=url,
                model=self.outputs.served_model,
                out=Path(folder) / "bench",
                max_failed=1.0,
            )
            sweep = Sweep(
                concurrency=(CONCURRENCY,),
                request_rate=(),
                input_tokens=(INPUT_TOKENS,),
                output_tokens=(OUTPUT_TOKENS,),
                requests=requests,
                duration_s=None,
                seed=seed_of(settings, None),
            )
            endpoint = endpoint_of(self._at(access, url))
            with refused():
                outcome = run_sweep(settings, sweep, endpoint, reporter_for_stderr("bench"), run=run_async)
            if outcome.ending == "interrupted":
                raise KeyboardInterrupt
            results = read_results(settings.out) if outcome.stored else []
        if outcome.ending in {"client failed", "unreachable"}:
            raise AccessError(f"the benchmark of {url} failed on this machine: {outcome.detail}.")
        if not results:
            raise ScriptError(f"The benchmark of {url} has no results: {outcome.detail}.")
        return _measured(judged(results[-1]))

    def _open(self) -> AbstractContextManager[ServerAccess]:
        return open_stack_access(self.outputs)

    def _at(self, access: ServerAccess, url: str) -> ServerAccess:
        tokens = IdTokenSource(self.service_url) if access.id_tokens is not None else None
        return replace(access, base_url=url.rstrip("/"), id_tokens=tokens)


def _measured(result: dict[str, Any]) -> Measured:
    completed, failed = int(result["completed"]), int(result["failed"])
    ttft_ms = result["median_ttft_ms"]
    return Measured(
        requests=completed + failed,
        failed=failed,
        ttft_s=ttft_ms / 1000 if ttft_ms is not None and completed else None,
        tok_per_s=result["output_throughput"] if completed else None,
    )

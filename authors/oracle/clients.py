"""Smoke checks and chat of `scripts.connect` against the server: checks that random weights must pass, and checks that they must fail."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from authors.oracle.environment import MODEL, ROOT, OracleError
from authors.oracle.measure import Bench
from authors.oracle.programs import run_tool
from authors.oracle.server import MAX_MODEL_LEN, OracleCores

SMOKE_VERDICTS: Final[Mapping[str, str]] = {
    "ready": "passed",
    "health latency": "passed",
    "served model": "passed",
    "chat": "failed",
    "streaming": "passed",
    "usage": "passed",
    "reasoning": "skipped",
    "tool call": "skipped",
    "structured output": "failed",
    "max-model-len": "passed",
    "tool result": "skipped",
    "tools with thinking": "skipped",
    "schema with thinking": "skipped",
    "schema instructions": "skipped",
    "image": "skipped",
    "two images": "skipped",
    "sound": "skipped",
    "video": "skipped",
    "media limits": "skipped",
    "context length": "skipped",
    "adapters": "skipped",
    "speculation": "skipped",
    "anonymous access": "skipped",
    "metrics": "passed",
    "options in effect": "skipped",
    "single stream": "passed",
    "burst": "passed",
}
"""Random weights do not know the capital of France and fill a JSON string up to the limit. Unconfigured checks are skipped, and
those of features run against a server that has them (`features.py`)."""


def smoke_faults(report: Mapping[str, Any]) -> list[str]:
    """Return each check of `scripts.smoke --json` with an unexpected verdict."""
    found = {str(check["name"]): check for check in cast("list[dict[str, Any]]", report["checks"])}
    faults = [f"smoke: the check '{name}' is missing" for name in SMOKE_VERDICTS if name not in found]
    for name, check in found.items():
        wanted = SMOKE_VERDICTS.get(name)
        if wanted is None:
            faults.append(
                f"smoke: the check '{name}' is new. Add its verdict for a random model to authors/oracle/clients.py."
            )
        elif check["verdict"] != wanted:
            faults.append(
                f"smoke: '{name}' must be {wanted}, but is {check['verdict']}: {check['measured']} {check['detail']}".rstrip()
            )
    if report["simulated"] is not None:
        faults.append(f"smoke: the server reports that it is simulated ({report['simulated']})")
    return faults


def check_smoke(bench: Bench) -> tuple[int, list[str]]:
    """Run the smoke checks. Return the number of expected verdicts, and the faults."""
    faults = smoke_faults(smoke_report(bench.url, bench.home.results / "smoke.log", bench.cores))
    return len(SMOKE_VERDICTS) - len(faults), faults


def smoke_report(url: str, log: Path, cores: OracleCores, *more: str) -> Mapping[str, Any]:
    """Run `scripts.smoke` with more options and return its report. Raises OracleError."""
    command = [sys.executable, "-m", "scripts.smoke", "--url", url, "--model", MODEL]
    command += ["--max-model-len", str(MAX_MODEL_LEN), "--json", *more]
    text = run_tool(command, ROOT, os.environ, log, cores, allowed=(0, 1))
    try:
        report = cast("dict[str, Any]", json.loads(text))
        _ = [check["verdict"] for check in report["checks"]]
    except (ValueError, KeyError) as error:
        raise OracleError(f"scripts.smoke printed no report ({error!r}). See {log}.") from None
    return report


def check_chat(bench: Bench) -> list[str]:
    """Send one prompt through the proxy of `scripts.connect chat`, which streams the response. Return the faults."""
    log = bench.home.results / "chat.log"
    command = [sys.executable, "-m", "scripts.connect", "chat", "--url", bench.url]
    command += ["--max-tokens", "32", "Say hello."]
    text = run_tool(command, ROOT, os.environ, log, bench.cores, allowed=(0,))
    return [] if text.strip() else [f"connect chat: no text was received, see {log}"]

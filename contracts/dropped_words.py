"""Words that 0.4.0 dropped, with what to use instead. The release after 0.4.0 drops this table."""

import re
from collections.abc import Mapping
from typing import Final

COMMANDS: Final[Mapping[str, str]] = {
    "quality": "Use lm-evaluation-harness with the task in examples/evals/; see docs/evaluate.md.",
    "batch": "Use examples/batch.py through `gemma connect`; see docs/evaluate.md.",
    "deploy": "Run `gemma up STACK` and `gemma smoke STACK`, or start the workflow deploy.yml; see docs/ci.md.",
    "drift": "Run `pulumi refresh --preview-only --expect-no-changes --stack STACK`; see docs/ci.md.",
    "plan learn": "Paste the boot log into an issue, with the form for boot logs.",
    "preview save": "Run `pulumi preview --save-plan FILE`; the file contains values of the stack.",
}
"""Words after `gemma`."""

SETTINGS: Final[Mapping[str, str]] = {
    "gateway.backends[].spare": "Remove it, and put two TPU stacks behind the gateway; see docs/gateway.md.",
    "cloudRun.rollout.steps": "Remove it; `gemma rollout` moves all traffic in one step, after its checks.",
    "cloudRun.rollout.requests": "Remove it; `gemma rollout` runs the smoke checks.",
    "cloudRun.rollout.maxSlowdown": "Remove it; set smoke.minTokensPerSecond for the least speed.",
    "cloudRun.rollout.maxFailed": "Remove it; `gemma rollout` stops at the first failed smoke check.",
}
"""Keys of a settings file, without the namespace. A key stands for all keys below it."""

FINDINGS: Final[Mapping[str, str]] = {
    "CST01": "Remove it; `gemma plan STACK` shows the bill as its cost.",
    "OBS01": "Remove it; alerts.email and alerts.webhook name a recipient (docs/observability.md).",
    "OBS04": "Remove it; the cost of alerts and metrics is in the bill (`gemma plan STACK --costs`).",
    "CST06": "Remove it; `gemma plan STACK --costs` names the cost of a renewal.",
    "LDR03": "Remove it; set cloudRun.compileCache: off if the cache saves nothing.",
    "FUS02": "Remove it; `gemma plan STACK --set cloudRun.directVpc=true` shows the start with Direct VPC.",
    "MOD05": "Remove it; docs/reference/checkpoints.md names the source of each checkpoint.",
}
"""Ids in `acceptFindings`."""


def answer(table: Mapping[str, str], word: str) -> str:
    """Return what to use instead of a dropped word, or of a key below it; else empty. `[0]` matches `[]`."""
    path = re.sub(r"\[\d+\]", "[]", word)
    return next((text for old, text in table.items() if path == old or path.startswith(f"{old}.")), "")

"""The faster start of a TPU server for text only: without the processor of images and video, and with one XLA program per step instead of two."""

from typing import Final

from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.question.features import allowed_items
from gemma_serving.planning.rules.findings import accepted_by, detected_findings
from gemma_serving.planning.settings.google_limits import PROBE_PERIOD_S
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.settings.vllm_args import Modality
from gemma_serving.planning.solve.remedy_wording import Wording
from gemma_serving.planning.units import duration

CHANGES: Final = {"vllm.limit_mm_per_prompt": {"image": 0, "audio": 0, "video": 0}}
_INPUTS: Final[dict[Modality, str]] = {"image": "images", "video": "video"}
"""Input that vLLM on TPU encodes. It has no audio encoder."""


def text_only(subject: Subject) -> Subject | None:
    """Return the same server for text only; None if it starts no faster, if a finding then blocks, or for a GPU."""
    resolved, present = subject.resolved, subject.known_startup
    if present is None or not resolved.is_tpu:
        return None
    after = examine(with_changes(resolved.question, CHANGES))
    blocks = {name for name, severity in detected_findings(after).items() if severity == "block"}
    is_faster = after.startup.total_s <= present.total_s - PROBE_PERIOD_S
    return after if is_faster and not blocks - accepted_by(after) else None


def text_only_start(subject: Subject, wording: Wording) -> str:
    """Return both starts, what is then rejected and the change in one paragraph; empty without a faster start."""
    resolved, after = subject.resolved, text_only(subject)
    if after is None:
        return ""
    served = " or ".join(name for kind, name in _INPUTS.items() if allowed_items(resolved, kind))
    loss = f"requests with {served} are then rejected" if served else "no request that is served now is rejected"
    change = wording.change(CHANGES) or ""
    starts = f"{duration(after.startup.total_s)} instead of {duration(subject.startup.total_s)}"
    return f"text only: {starts}; {loss}. {change[:1].upper()}{change[1:]}."

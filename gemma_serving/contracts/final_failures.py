"""Log lines of failed starts that each further start of the same serving document repeats."""

import re
from collections.abc import Mapping
from typing import Final

FINAL_FAILURES: Final[Mapping[str, str]] = {
    "no-revision": r"RevisionNotFoundError|Revision Not Found for url|Invalid rev id|is not a valid git identifier",
    "absent": r"RepositoryNotFoundError|Repository Not Found for url|is not a valid model identifier listed on",
    "gated": r"GatedRepoError|Cannot access gated repo|Access to model \S+ is restricted|401 Client Error",
    "arguments": r"vllm(?: serve)?: error: (?P<message>.*\S)",
    "configuration": r"invalid (?P<parser>tool call|reasoning) parser: |\d validation errors? for (?!ModelConfig\b)(?P<config>\w+Config)\b",
}
"""Regular expression of each, by the name of its cause in stacks/hooks/causes.toml.

From huggingface_hub (utils/_http.py), transformers (utils/hub.py), argparse and vLLM. An error of ModelConfig is not listed: vLLM reports a hub that does
not respond by it too.
"""


def is_final(line: str) -> bool:
    """Return whether a log line shows a failure that another start repeats."""
    return any(re.search(pattern, line) for pattern in FINAL_FAILURES.values())

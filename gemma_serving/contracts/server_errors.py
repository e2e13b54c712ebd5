"""The error in the log of a server that stopped: the line that shows why, and whether each further start of the same document repeats it."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from gemma_serving.contracts.guest_attributes import WAITING_FOR_HUB, WAITING_FOR_STORAGE

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


PASSING = re.compile(
    r"\b(?:429|5\d\d) (?:Client|Server) Error\b|\b(?:Client|Server) error '(?:429|5\d\d)\b|\bstatus(?: code)?:? (?:429|5\d\d)\b"
    r"|\btoomanyrequests\b|\b429 Too Many Requests\b|\b50[0234] (?:Bad Gateway|Service Unavailable|Gateway Time-?out|Internal Server)"
    r"|name resolution|\bName or service not known|No address associated with hostname|NameResolution|no such host|server misbehaving"
    r"|\btimed out\b|[a-z]Time-?out\b|\b(?:i/o|handshake) timeout|deadline exceeded|no result within"
    r"|\bconnection (?:reset|refused|aborted|broken)|Remote end closed|RemoteProtocolError|unexpected EOF|Network is unreachable"
    r"|Max retries exceeded|couldn't connect to|check your connection",
    re.IGNORECASE,
)
"""Messages of a transient cause: 429, 5xx, timeouts, resets and failed name resolution. Others are a verdict.

From docker, requests, httpx and huggingface_hub (utils/_http.py, file_download.py), and of transformers (utils/hub.py)."""
HUB = re.compile(r"huggingface\.co|\bhf\.co\b|huggingface_hub|on the Hub\b|transformers/utils/hub", re.IGNORECASE)
STORAGE = re.compile(r"storage\.googleapis\.com|google[./]cloud[./]storage|\brunai|\bgs://", re.IGNORECASE)
EXCEPTION = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Timeout): |\bFatal Python error: ")
"""Last line of a traceback. The last one in a log is its verdict."""
REPEATED = re.compile(r"Engine core initialization failed|WorkerProc initialization failed|root cause")
"""Exceptions by which vLLM's other processes report the first one."""
LOGGER = re.compile(r"^(?:\([^)]*pid=\d+\)\s*)?(?:[A-Z]+ \d\d-\d\d [\d:.]+ \[[^\]]*\]\s*)?")
"""Prefix of each line of vLLM's logger, such as "(APIServer pid=1) ERROR 11-21 00:16:04 [core.py:1] "."""
NO_ERROR = re.compile(r"^(?:\([^)]*pid=\d+\)\s*)?(?:DEBUG|INFO|WARNING) \d\d-\d\d ")
"""Start of a line that vLLM logs as no error. Some name exceptions, such as its warning about the limit of open files."""
MODULES = re.compile(r"^(?:\w+\.)+(?=[A-Z]\w*(?:Error|Exception)\b)")
"""Module of an exception, which hides its message on a narrow screen."""
TRACEBACK_LINES = 40
"""Lines of a traceback before its message, of which one names the library of the call."""


def waiting_phase(lines: "Sequence[str]") -> str:
    """Return the phase for the last exception in a log, or none if it is not transient."""
    for number in range(len(lines) - 1, -1, -1):
        line = lines[number]
        if not EXCEPTION.search(line) or REPEATED.search(line):
            continue
        traceback = "\n".join(lines[max(0, number - TRACEBACK_LINES) : number])
        source = next((text for text in (line, traceback) if HUB.search(text) or STORAGE.search(text)), "")
        if not source or not PASSING.search(line):
            return ""
        return WAITING_FOR_HUB if HUB.search(source) else WAITING_FOR_STORAGE
    return ""


def server_error(lines: "Sequence[str]") -> "tuple[str, bool]":
    """Return the log line that shows why a server stopped, and whether each further start repeats it; or an empty line."""
    texts = [LOGGER.sub("", line.strip()) for line in lines if not NO_ERROR.match(line.strip())]
    final = [number for number, line in enumerate(texts) if is_final(line)]
    exceptions = [number for number, line in enumerate(texts) if EXCEPTION.search(line) and not REPEATED.search(line)]
    found = (final or exceptions)[-1:]
    if not found:
        return "", False
    # A value that pydantic rejects is on the two lines that follow.
    end = found[0] + (3 if "validation error" in texts[found[0]] else 1)
    text = " ".join(line.partition(" [type=")[0].strip() for line in texts[found[0] : end])
    return MODULES.sub("", text), bool(final) and not waiting_phase(lines)

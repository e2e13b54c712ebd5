"""Causes that pass by themselves: 429, 5xx, timeouts, resets and failed name resolution of the hub, a registry or storage.

Everything else is a verdict, after a few attempts: 401, 403 and 404 among them.
"""

import re
from collections.abc import Sequence

from contracts.guest_attributes import WAITING_FOR_HUB, WAITING_FOR_STORAGE

PASSING = re.compile(
    r"\b(?:429|5\d\d) (?:Client|Server) Error\b|\b(?:Client|Server) error '(?:429|5\d\d)\b|\bstatus(?: code)?:? (?:429|5\d\d)\b"
    r"|\btoomanyrequests\b|\b429 Too Many Requests\b|\b50[0234] (?:Bad Gateway|Service Unavailable|Gateway Time-?out|Internal Server)"
    r"|name resolution|\bName or service not known|No address associated with hostname|NameResolution|no such host|server misbehaving"
    r"|\btimed out\b|[a-z]Time-?out\b|\b(?:i/o|handshake) timeout|deadline exceeded|no result within"
    r"|\bconnection (?:reset|refused|aborted|broken)|Remote end closed|RemoteProtocolError|unexpected EOF|Network is unreachable"
    r"|Max retries exceeded|couldn't connect to|check your connection",
    re.IGNORECASE,
)
"""Messages of docker, requests, httpx and huggingface_hub (utils/_http.py, file_download.py), and of transformers (utils/hub.py)."""
HUB = re.compile(r"huggingface\.co|\bhf\.co\b|huggingface_hub|on the Hub\b|transformers/utils/hub", re.IGNORECASE)
STORAGE = re.compile(r"storage\.googleapis\.com|google[./]cloud[./]storage|\brunai|\bgs://", re.IGNORECASE)
EXCEPTION = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Timeout): |\bFatal Python error: ")
"""Last line of a traceback. The last one in a log is its verdict."""
REPEATED = re.compile(r"Engine core initialization failed|WorkerProc initialization failed|root cause")
"""Exceptions by which vLLM's other processes report the first one."""
TRACEBACK_LINES = 40
"""Lines of a traceback before its message, of which one names the library of the call."""


def waiting_phase(lines: "Sequence[str]") -> str:
    """Return the phase for the last exception in the log of a server that stopped, or an empty string if it does not pass by itself."""
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

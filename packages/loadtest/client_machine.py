"""Properties of the machine that sends the load, for the header of a report. Nothing in them identifies a user or a host."""

import os
import platform
import re
from pathlib import Path
from typing import Any

from loadtest.generator.pool import usable_cores


def client_machine() -> dict[str, Any]:
    """Return system, architecture, processor, usable cores, Python, and the load average of the last minute; None if unknown."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": usable_cores(),
        "python": platform.python_version(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _processor() -> str | None:
    """Return the name of the processor; None if the system does not report it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or None
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else None

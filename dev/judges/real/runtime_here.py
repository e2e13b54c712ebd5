"""`runc` for a machine whose root lacks rights: drops from a container what this machine cannot grant, then becomes runc.

The limit of locked memory cannot be raised, and CAP_SYS_RESOURCE cannot be given, without CAP_SYS_RESOURCE. Both are not judged here.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

DROPPED = ("RLIMIT_MEMLOCK", "CAP_SYS_RESOURCE")


def drop_rights(process: dict[str, Any]) -> None:
    """Remove the rights from the description of a process."""
    process["rlimits"] = [limit for limit in process.get("rlimits", []) if limit["type"] not in DROPPED]
    capabilities: dict[str, list[str]] = process.get("capabilities") or {}
    process["capabilities"] = {
        kind: [name for name in names if name not in DROPPED] for kind, names in capabilities.items()
    }


def main(argv: Sequence[str]) -> NoReturn:
    """Change the bundle of a new container, or the process that runs in one, and run runc."""
    words = [part for word in argv for part in word.split("=", 1)]
    files = {"--bundle": "config.json", "--process": ""}
    for option, name in files.items():
        if option in words:
            path = Path(words[words.index(option) + 1], name)
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            drop_rights(document["process"] if name else document)
            path.write_text(json.dumps(document), encoding="utf-8")
    os.execvp("runc", ["runc", *argv])  # noqa: S606 - runc of the system


if __name__ == "__main__":
    main(sys.argv[1:])

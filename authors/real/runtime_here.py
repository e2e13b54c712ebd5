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


def without_rights(config: Path) -> None:
    """Write a bundle's configuration again without the rights."""
    document: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    process: dict[str, Any] = document["process"]
    process["rlimits"] = [limit for limit in process.get("rlimits", []) if limit["type"] not in DROPPED]
    capabilities: dict[str, list[str]] = process.get("capabilities") or {}
    process["capabilities"] = {
        kind: [name for name in names if name not in DROPPED] for kind, names in capabilities.items()
    }
    config.write_text(json.dumps(document), encoding="utf-8")


def main(argv: Sequence[str]) -> NoReturn:
    """Change the bundle that --bundle names, if there is one, and run runc."""
    words = [part for word in argv for part in word.split("=", 1)]
    if "--bundle" in words:
        without_rights(Path(words[words.index("--bundle") + 1]) / "config.json")
    os.execvp("runc", ["runc", *argv])  # noqa: S606 - runc of the system


if __name__ == "__main__":
    main(sys.argv[1:])

"""Commands to run with `pulumi`: `python -m scripts.NAME --help`.

Each command is a folder; `cli/` and `stack/` are shared code. Another command may import only a command's `api.py`.
"""

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

from gemma_serving.contracts.exit_codes import ExitCode

if find_spec("rich") is None:
    root = Path(__file__).resolve().parents[1]
    is_set_up = (root / ".venv" / "bin" / "python").exists()
    fix = (
        f"Run `{root / 'gemma'}` or `.venv/bin/python`"
        if is_set_up
        else f"Run `make -C {shlex.quote(str(root))} setup`"
    )
    sys.stderr.write(f"{sys.executable} lacks the packages of this project. {fix}.\n")
    raise SystemExit(ExitCode.REFUSED)

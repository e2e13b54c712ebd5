"""Files of what the product says or makes, which change only on purpose. With UPDATE_GOLDEN=1 a test writes its file, then compares."""

import os
from pathlib import Path


def golden(path: Path, text: str) -> str:
    """Return the text of a golden file, which is `text` from now on if UPDATE_GOLDEN is set."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8")


def if_meant(command: str = "") -> str:
    """Return the message of the running test: the command that writes its file."""
    test = os.environ["PYTEST_CURRENT_TEST"].partition("::")[0]
    command = command or f"make test TESTS={test}"
    return f"If the change is meant: UPDATE_GOLDEN=1 {command}, then read the difference of the golden file"

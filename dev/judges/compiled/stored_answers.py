"""The answers of the judge, as `gemma plan --compile --json` has them, by row."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ANSWERS: Final = Path(__file__).with_name("answers.json")


def read_answers() -> Mapping[str, Any]:
    """Return the stored answers; none without a file."""
    return json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}

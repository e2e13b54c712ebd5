"""Write answers to the `tried` field of the entries in a checkout, or to a separate file."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from localcloud.ledger.entries import Assumption
from localcloud.trials.judging import Judgement
from localcloud.trials.placeholders import Kind, Placeholders
from localcloud.trials.resources import PREFIX

LEDGER: Final = Path(__file__).resolve().parents[1] / "ledger"
_OWN_NAME: Final = re.compile(rf"{PREFIX}[a-z0-9]+(-[a-z]+)?")


class Redaction:
    """Removes from answers everything that identifies the project or grants access. The project's id and number are known from the start."""

    def __init__(self, placeholders: Placeholders, project: str, number: str) -> None:
        self._placeholders = placeholders
        placeholders.learn(Kind.PROJECT, project)
        if number:
            placeholders.learn(Kind.NUMBER, number)

    def text(self, value: str) -> str:
        """Return a redacted text, with TRY in place of the names that the trials chose."""
        return self._placeholders.text(_OWN_NAME.sub("TRY", value))


def tried(day: str, judgement: Judgement, redaction: Redaction, where: str) -> str:
    """Return the text of `tried`."""
    return f"{day}, {where}: {judgement.verdict}: {redaction.text(judgement.answered)}"


def is_checkout() -> bool:
    """Return whether the ledger's files belong to a checkout of the project."""
    return (LEDGER.parents[1] / ".git").exists()


def write_to_ledger(folder: Path, entry: Assumption, text: str) -> bool:
    """Write the `tried` text of an entry to the file that contains it. Return whether the entry was found."""
    for path in sorted(folder.glob("*.toml")):
        content = path.read_text(encoding="utf-8")
        blocks = re.split(r"(?m)^(?=\[\[)", content)
        for at, block in enumerate(blocks):
            if re.search(rf'(?m)^id = "{re.escape(entry.id)}"$', block) is None:
                continue
            before, _, after = re.split(r"(?m)^(tried = .*)$", block, maxsplit=1)
            blocks[at] = f"{before}tried = {json.dumps(text, ensure_ascii=False)}{after}"
            new = path.with_suffix(".new")
            new.write_text("".join(blocks), encoding="utf-8")
            new.replace(path)
            return True
    return False


def write_to_file(path: Path, answers: Mapping[str, str]) -> None:
    """Write all answers so far as one JSON object, by entry."""
    path.write_text(json.dumps(dict(answers), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

"""Write verdicts to the `tried` field of the entries in a checkout, or to a separate file. Google's words, which may identify someone, are printed alone."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from localcloud.ledger.entries import CriticalAssumption
from localcloud.trials.judging import Judgement

LEDGER: Final = Path(__file__).resolve().parents[1] / "ledger" / "critical.toml"
_RECORDED: Final = re.compile(r"\d{4}-\d\d-\d\d, a real project: (as assumed|differs)")


def tried(day: str, judgement: Judgement, where: str) -> str:
    """Return the text of `tried`."""
    return f"{day}, {where}: {judgement.verdict}"


def is_recordable(text: object) -> bool:
    """Return whether a text has the form of `tried`, of a real project."""
    return isinstance(text, str) and _RECORDED.fullmatch(text) is not None


def form(written: Mapping[str, str], entries: Sequence[CriticalAssumption], usd: float) -> str:
    """Return the text for an issue: how many entries were tried, and each answer with the effect if it differs."""
    known = {entry.id: entry for entry in entries}
    tried_ones = [name for name in known if name in written]
    lines = [f"{len(tried_ones)} of {len(known)} critical assumptions tried, at most {usd:.2f} USD.", ""]
    for name, text in written.items():
        lines.append(f"- `{name}`: {text}")
        if text.endswith(": differs") and name in known:
            lines += [f"  - assumed: {known[name].statement}", f"  - effect: {known[name].if_false}"]
    return "\n".join(lines) + "\n"


def is_checkout() -> bool:
    """Return whether the ledger's files belong to a checkout of the project."""
    return (Path(__file__).resolve().parents[3] / "Pulumi.yaml").is_file()


def write_to_ledger(name: str, text: str) -> None:
    """Write the `tried` text of an entry to the ledger's file."""
    blocks = re.split(r"(?m)^(?=\[\[)", LEDGER.read_text(encoding="utf-8"))
    at = next(at for at, block in enumerate(blocks) if re.search(rf'(?m)^id = "{re.escape(name)}"$', block))
    before, _, after = re.split(r"(?m)^(tried = .*)$", blocks[at], maxsplit=1)
    blocks[at] = f"{before}tried = {json.dumps(text, ensure_ascii=False)}{after}"
    new = LEDGER.with_suffix(".new")
    new.write_text("".join(blocks), encoding="utf-8")
    new.replace(LEDGER)


def write_to_file(path: Path, answers: Mapping[str, str]) -> None:
    """Write all answers so far as one JSON object, by entry."""
    path.write_text(json.dumps(dict(answers), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

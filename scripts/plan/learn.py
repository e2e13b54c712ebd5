"""Import a boot log: compare it with the plan and add it to the corpus of measured boots."""

import json
from pathlib import Path

from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from scripts.cli.command import say
from scripts.plan.corpus.measured import FILE, LEARNED_FILE, MeasurementError, parse
from scripts.plan.learn_options import LearnOptions
from scripts.plan.learned_boot import read_log, what_is_missing
from scripts.plan.learned_table import as_json, show


def learn(options: LearnOptions) -> ExitCode:
    """Read a boot log, add it to the corpus and print the comparison with the plan."""
    path = options.into or LEARNED_FILE
    boot = read_log(options, path)
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    texts = [FILE.read_text(encoding="utf-8"), before + boot.text]
    if path.resolve() == FILE.resolve():
        del texts[0]
    try:
        measured = parse(*texts)
    except MeasurementError as error:
        raise CommandRefusedError(f"{path}: {error}") from None
    found = measured.boot(boot.boot_id)
    if options.as_json:
        print(json.dumps(as_json(boot, found, None if options.show else str(path)), indent=2))
    else:
        show(found)
    if not options.show:
        _add(path, before + boot.text)
        say("plan", f"{path}: added {boot.boot_id}.")
    if sentence := what_is_missing(boot):
        say("plan", sentence)
    return ExitCode.DONE


def _add(path: Path, text: str) -> None:
    """Write the file. Raises CommandRefusedError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandRefusedError(f"Cannot write --into {path}: {error.strerror}. Pass another file.") from None

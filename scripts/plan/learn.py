"""Import a boot log: compare it with the plan and add it to the corpus of measured boots, as a file of its own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from scripts.cli.command import say
from scripts.plan.corpus.errors import compared
from scripts.plan.corpus.measured import BOOTS, Boot, MeasurementError, Measurements, corpus_files, parse_named
from scripts.plan.corpus.verdicts import judged
from scripts.plan.learn_options import LearnOptions
from scripts.plan.learned_boot import LearnedBoot, boot_of, boot_text, what_is_missing
from scripts.plan.learned_log import BootLog, log_of_file, log_of_stack
from scripts.plan.learned_table import as_json, show

_OFFER: Final = (
    "It has the boot's settings and figures, without project, machine, bucket or secret. To share it, read it, then open a pull "
    "request that adds this file."
)


def learn(options: LearnOptions) -> ExitCode:
    """Read a boot log, print the comparison with the plan, and add the boot to the corpus unless its log is in it."""
    log = _log(options)
    folder = options.into or BOOTS
    texts = _texts(folder)
    corpus = _parsed(texts, folder)
    recorded = next((boot for boot in corpus.boots if _is_of(boot, log)), None)
    learned = boot_of(log, options.question, url=options.url)
    path = folder / f"{learned.boot_id}.toml"
    found = recorded or _parsed({**texts, path.name: boot_text(learned)}, folder).boot(learned.boot_id)
    is_added = recorded is None and not options.show and not log.is_simulated
    if options.as_json:
        print(
            json.dumps(
                as_json(learned, found, str(path) if is_added else None, is_recorded=recorded is not None), indent=2
            )
        )
    else:
        show(found)
    if is_added:
        _write(path, _with_first_sight(learned, found))
    for sentence in _sentences(options, log, recorded, path if is_added else None, learned):
        say("plan", sentence)
    return ExitCode.DONE


def _log(options: LearnOptions) -> BootLog:
    """Return the log of the options. Raises CommandRefusedError."""
    if options.log is not None:
        return log_of_file(options.log)
    if options.question.stack is None:
        raise CommandRefusedError("No log. Pass the path of a boot log, or --stack NAME to read the stack's logs.")
    return log_of_stack(options.question.stack)


def _texts(folder: Path) -> Mapping[str, str]:
    """Return the corpus and the files of the folder, by name."""
    own = sorted(folder.glob("*.toml")) if folder != BOOTS else []
    return {path.name: path.read_text(encoding="utf-8") for path in (*corpus_files(), *own)}


def _parsed(texts: Mapping[str, str], folder: Path) -> Measurements:
    try:
        return parse_named(texts)
    except MeasurementError as error:
        raise CommandRefusedError(f"{folder}: {error}") from None


def _is_of(boot: Boot, log: BootLog) -> bool:
    return any(source.log_sha256 == log.sha256 for source in boot.sources)


def _with_first_sight(learned: LearnedBoot, found: Boot) -> str:
    """Return the boot's file with today's predictions, which nothing can have been tuned to."""
    first = {row.figure.key: row.predicted for row in compared((found,))}
    return boot_text(learned, first=first, first_right=judged(found).is_right)


def _sentences(
    options: LearnOptions, log: BootLog, recorded: Boot | None, added: Path | None, learned: LearnedBoot
) -> list[str]:
    found: list[str] = []
    if recorded is not None:
        found.append(f"The corpus has this log already, as {recorded.id}. Nothing was added.")
    elif added is not None:
        found.append(f"{added}: added. {_OFFER}")
    elif log.is_simulated and not options.show:
        found.append("A simulated server wrote this log. It measures nothing, so nothing was added.")
    missing = what_is_missing(learned)
    return [*found, *([missing] if missing else [])]


def _write(path: Path, text: str) -> None:
    """Write the file. Raises CommandRefusedError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandRefusedError(f"Cannot write {path}: {error.strerror}. Pass another folder with --into.") from None

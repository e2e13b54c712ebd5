"""Project folder of a trial on the local cloud: links to the checkout, and copies of the settings files.

The engine writes a stack's salt and its encrypted secrets into the settings file next to Pulumi.yaml, and no option of `pulumi stack init`
names another file. So commands for a local cloud run in a folder of the cloud's state. A copy has every line of the checkout's file
except that salt and secrets are the trial's, not those of the real deployment, and so is the hash of weights that the trial has staged.

`.venv/bin/pulumi` runs this file before the engine, so it imports only the standard library, and the editor of settings files where a copy differs.
"""

import contextlib
import functools
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

STATE_VARIABLE: Final = "LOCALCLOUD_STATE"
"""Variable with the state folder of the local cloud; not set outside it."""
_FOLDER_VARIABLE: Final = "GEMMA_SERVING_FOLDER"
"""As in contracts.installation, which this file cannot import."""
_WORK: Final = ".work"
"""Folder of the checkout for receipts and backups, which must not disappear with a cloud."""
_SETTINGS: Final = "Pulumi.*.yaml"
_SEEN: Final = ".checkout"
"""Folder of the trial with the checkout's settings files as of the last command."""
_FIRST_INDENTED: Final = re.compile(r"^config: *\n(?:(?: *#.*)?\n)*( +)", re.MULTILINE)
_SALT: Final = re.compile(r"^(?:encryptionsalt|secretsprovider|encryptedkey):.*(?:\n|\Z)", re.MULTILINE)
_SECRET: Final = re.compile(
    r"^( +)[\"']?(?P<key>[\w.-]+:[\w.-]+)[\"']?: *(?:\{ *|\n\1 +)secure: *(?P<value>[^\s}]+) *\}?(?:\n|\Z)",
    re.MULTILINE,
)
_FILE_OPTIONS: Final = frozenset({"--file", "--out", "--plan", "--save-plan", "--event-log", "--config-file"})
"""Options of the engine whose values are paths, which are relative to the folder of the caller."""


def project_of(project: Path) -> Path:
    """Return the folder that commands work in: in a local cloud the trial's, otherwise `project`.

    Only a checkout, which has a folder `.venv`, gets a trial. A copy of it, which a test or a preview works in, has a link. Another program,
    such as examples/own_program, has neither, and its relative paths would not exist from the trial.
    """
    state, environment = os.environ.get(STATE_VARIABLE), project / ".venv"
    if not state or environment.is_symlink() or not environment.is_dir():
        return project
    project = project.resolve()
    import hashlib  # noqa: PLC0415 - 2 ms, and only a local cloud has trials

    folder = Path(state, "projects", f"{project.name}-{hashlib.sha256(str(project).encode()).hexdigest()[:8]}")
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # a read-only checkout
        (project / _WORK).mkdir(exist_ok=True)
    settings = {path.name for path in project.glob(_SETTINGS)}
    names = {path.name for path in project.iterdir()}
    for path in folder.iterdir():
        if path.name not in names and (path.is_symlink() or path.match(_SETTINGS)):
            path.unlink(missing_ok=True)
    for name in names - settings:
        with contextlib.suppress(FileExistsError):
            (folder / name).symlink_to(project / name)
    for name in settings:
        now, copy = _text(project / name), _text(folder / name)
        _write(folder / name, with_secrets_of(_with_edits(now, _text(folder / _SEEN / name), copy), copy))
        _write(folder / _SEEN / name, now)
    return folder


@functools.cache
def _with_edits(text: str, before: str, after: str) -> str:
    """Return a settings file with the values that differ between two versions of it, without salts and secrets.

    A key that the file itself has changed stays as it is.
    """
    old, new = without_secrets(before), without_secrets(after)
    if not text:
        return new
    if not before or not after or old.splitlines() == new.splitlines():
        return text
    from ruamel.yaml import YAMLError  # noqa: PLC0415 - 0.1 s, and few commands need it

    from gemma_serving.engine.settings_file import SettingsFile  # noqa: PLC0415 - as above

    try:
        file = SettingsFile(text)
        file.merge(old, new)
        return file.text()
    except (YAMLError, AttributeError):
        return text


def with_secrets_of(text: str, other: str) -> str:
    """Return a settings file with the salt and the secrets of another one instead of its own."""
    kept = without_secrets(text)
    names = {match["key"] for match in re.finditer(r"^ +[\"']?(?P<key>[\w.-]+:[\w.-]+)[\"']?:", kept, re.MULTILINE)}
    found = _FIRST_INDENTED.search(kept)
    if found is not None:
        blank = found[1]
        added = [match for match in _SECRET.finditer(other) if match["key"] not in names]
        lines = [f"{blank}{match['key']}:\n{blank}  secure: {match['value']}\n" for match in added]
        kept = "".join([kept[: found.start(1)], *lines, kept[found.start(1) :]])
    salt = [match[0].rstrip("\n") for match in _SALT.finditer(other)]
    return "\n".join([kept.rstrip("\n"), *salt, ""]) if salt else kept


def without_secrets(text: str) -> str:
    """Return a settings file without its encryption salt and its secrets."""
    return _SECRET.sub("", _SALT.sub("", text))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return ""


def _write(path: Path, text: str) -> None:
    """Replace a file if its text differs, so that no reader finds half of it."""
    if path.is_file() and _text(path) == text:
        return
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    if path.exists():
        fresh.chmod(path.stat().st_mode)
    fresh.replace(path)


def bring_back(folder: Path, project: Path, before: Mapping[str, str]) -> None:
    """Write what `pulumi config` changed in the trial into the checkout's files, except salts and secrets.

    `before`: the copies before the command.
    """
    for path in folder.glob(_SETTINGS):
        original = _text(project / path.name)
        text = _with_edits(original, before.get(path.name, ""), _text(path))
        if text != original:
            _write(project / path.name, text)
            _write(folder / _SEEN / path.name, text)


def main(engine: str, arguments: Sequence[str]) -> int:
    """Run the engine in the trial's folder if the caller is in a project."""
    here = Path.cwd()
    project = next((folder for folder in (here, *here.parents) if (folder / "Pulumi.yaml").is_file()), None)
    folder = project and project_of(project)
    if project is None or folder is None or folder == project:
        os.execv(engine, [engine, *arguments])  # noqa: S606 - the launcher's engine
    words = list(_absolute(arguments, here))
    os.chdir(folder)
    os.environ["PWD"] = str(folder)  # the engine believes it
    os.environ.setdefault(_FOLDER_VARIABLE, str(project))
    if not arguments or arguments[0] != "config":
        os.execv(engine, [engine, *words])  # noqa: S606 - as above
    before = {path.name: _text(path) for path in folder.glob(_SETTINGS)}
    try:
        code = subprocess.run([engine, *words], check=False).returncode
    except KeyboardInterrupt:  # the terminal interrupted the engine, too
        return 130
    bring_back(folder, project, before)
    return code


def _absolute(arguments: Sequence[str], here: Path) -> Sequence[str]:
    """Return the arguments with the paths of files as the caller means them."""
    words: list[str] = []
    for word in arguments:
        option, equals, value = word.partition("=")
        if words and words[-1] in _FILE_OPTIONS:
            words.append(str(here / word))
        elif equals and option in _FILE_OPTIONS:
            words.append(f"{option}={here / value}")
        else:
            words.append(word)
    return words


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))
    sys.exit(main(sys.argv[1], sys.argv[2:]))

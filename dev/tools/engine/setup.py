"""Find or create an engine, then link it into the virtual environment as `pulumi`."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dev.tools.engine import build, release
from dev.tools.engine.model import (
    LANGUAGE_EXEC,
    LANGUAGE_HOST,
    VERSION,
    Engine,
    EngineError,
    Source,
    cache_root,
    new_enough,
    project_root,
    version_of,
)
from localcloud.go_build import locked

_MARK = "# written by tools.engine"

_LANGUAGE_HOST_LINE = (
    'exec "${GEMMA_SERVING_PYTHON:?start pulumi through .venv/bin/pulumi}" -P "$GEMMA_SERVING_ROOT/tools/engine/language_host.py" '
    '--exec "$(dirname "$0")/pulumi-language-python-exec" "$@"'
)
"""One engine serves many checkouts. The link in the virtual environment sets the interpreter and the folder that has `tools/` in its checkout."""

_NO_WAY = (
    "No Pulumi engine is available ({reasons}). Install Pulumi from https://www.pulumi.com/docs/install/ so `pulumi` is on PATH, "
    "or install Go 1.26 or newer to build it. Then run `make setup` again."
)


def on_path() -> Engine | None:
    """Return the engine on the user's PATH, or None. Our own link in the virtual environment is ignored."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        candidate = Path(folder or ".") / "pulumi"
        if not candidate.is_file() or not os.access(candidate, os.X_OK) or _is_ours(candidate):
            continue
        version = version_of(candidate)
        if version is not None and new_enough(version):
            engine = _described(candidate.resolve(), version, Source.PATH)
            if engine is not None:
                return engine
    return None


def cached(source: Source) -> Engine | None:
    """Return the engine that an earlier set-up stored in the user's cache folder, or None."""
    executable = _folder(source) / "pulumi"
    if not executable.is_file():
        return None
    # The folder is keyed by version and created atomically, so running the binary again only costs time.
    return _described(executable, VERSION, source)


def installed() -> Engine:
    """Return the engine that an earlier set-up stored. Raises EngineError without one: it runs no installer, and ignores PATH."""
    for source in (Source.RELEASE, Source.BUILD):
        if (engine := cached(source)) is not None:
            return engine
    raise EngineError(f"{cache_root() / VERSION} has no Pulumi engine. Install it: run `make setup`.")


def ensure(allowed: Sequence[Source] = tuple(Source)) -> Engine:
    """Return an engine, creating one if necessary. `allowed` restricts the sources. Raises EngineError if all fail."""
    reasons: list[str] = []
    if Source.PATH in allowed:
        if (engine := on_path()) is not None:
            return engine
        reasons.append("none on PATH that is new enough and can run Python programs")
    made = [source for source in (Source.RELEASE, Source.BUILD) if source in allowed]
    for source in made:
        if (engine := cached(source)) is not None:
            return engine
    makers: dict[Source, Callable[[Path], None]] = {Source.RELEASE: release.install, Source.BUILD: build.build}
    for source in made:
        try:
            return _make(source, makers[source])
        except EngineError as error:
            reasons.append(str(error).rstrip("."))
    raise EngineError(_NO_WAY.format(reasons="; ".join(reasons)))


def link(engine: Engine) -> bool:
    """Write `pulumi` into the virtual environment, and the language host stand-in next to an engine without one. Return whether a file changed."""
    binaries = Path(sys.prefix) / "bin"
    # The engine's commands are short. With Go's default of 100, garbage collection takes a tenth of their CPU time.
    variables = f'GOGC="${{GOGC:-400}}" GEMMA_SERVING_PYTHON="{binaries}/python" GEMMA_SERVING_ROOT="{project_root()}/dev" PATH="{binaries}:$PATH"'
    started = f'"{engine.executable}" "$@"'
    trial = f'[ -z "$LOCALCLOUD_STATE" ] || [ -L .venv ] || exec "{binaries}/python" -P "{project_root()}/gemma_serving/engine/trial.py" {started}'
    changed = _write(binaries / "pulumi", _script(f"export {variables}\n{trial}\nexec {started}"))
    if engine.language_exec is not None:
        # Next to the engine, not on PATH: the engine warns about every language host on PATH.
        changed |= _write(engine.executable.with_name(LANGUAGE_HOST), _script(_LANGUAGE_HOST_LINE))
    return changed


def _script(line: str) -> str:
    return f"#!/bin/sh\n{_MARK}\n{line}\n"


def _write(path: Path, text: str) -> bool:
    if path.is_file() and path.read_text(errors="replace") == text:
        return False
    path.write_text(text)
    path.chmod(0o755)
    return True


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return _MARK.encode() in file.read(200)


def _folder(source: Source) -> Path:
    return cache_root() / VERSION / source.value


def _described(executable: Path, version: str, source: Source) -> Engine | None:
    """Return a description of an engine, or None if it cannot run Python programs, because it has neither a language host nor a runner for ours."""
    beside = executable.with_name(LANGUAGE_HOST)
    came_with_host = beside.is_file() and not _is_ours(beside)
    has_host = came_with_host or shutil.which(LANGUAGE_HOST, path=_path_without_ours()) is not None
    runner = executable.with_name(LANGUAGE_EXEC)
    if not has_host and not runner.is_file():
        return None
    return Engine(executable=executable, version=version, source=source, language_exec=None if has_host else runner)


def _path_without_ours() -> str:
    binaries_of = str(Path(sys.prefix) / "bin")
    return os.pathsep.join(folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder != binaries_of)


def _make(source: Source, maker: Callable[[Path], None]) -> Engine:
    folder = _folder(source)
    with locked(cache_root() / VERSION):
        if cached(source) is None:
            verb = (
                "fetching the official release"
                if source is Source.RELEASE
                else "building it from source, about 5 minutes, once per version"
            )
            print(f"engine: no Pulumi {VERSION} yet, {verb}", file=sys.stderr, flush=True)
            maker(folder)
    engine = cached(source)
    if engine is None or version_of(engine.executable) != VERSION:
        shutil.rmtree(folder, ignore_errors=True)
        raise EngineError(f"The engine created in {folder} does not report version {VERSION} and was removed.")
    return engine

"""Build the engine from its Go modules: about five minutes on two cores, once per version and user."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

from tools.engine.model import LANGUAGE_EXEC, VERSION, EngineError

_MODULE = "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"
_SDK_MODULE = "github.com/pulumi/pulumi/sdk/v3"
_VERSION_VARIABLE = "github.com/pulumi/pulumi/sdk/v3/go/common/version.Version"
_BUILD_LIMIT_S = 45 * 60
_REPORT_EVERY_S = 10.0
_PACKAGES = 1670
"""Packages that a first build compiles, including the standard library: `go list -deps`, Go 1.26."""
_LINES_SHOWN = 12


def build(into: Path) -> None:
    """Build the engine into a new folder `into`, together with the runner of Python programs.

    The folder is created atomically. Raises EngineError without Go, or with the compiler's last lines.
    """
    go = shutil.which("go")
    if go is None:
        raise EngineError("`go`, needed to build the Pulumi engine, is not on PATH.")
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent, prefix="building-") as folder:
        module = Path(folder) / "module"
        shutil.copytree(Path(__file__).with_name("golang"), module)
        result = Path(folder) / "result"
        result.mkdir()
        _compile(go, module, result / "pulumi")
        _take_language_exec(go, module, result / LANGUAGE_EXEC)
        result.rename(into)


def _environment() -> dict[str, str]:
    # The module file is complete, so no module may be added or upgraded implicitly.
    flags = f"{os.environ.get('GOFLAGS', '')} -mod=readonly -trimpath".strip()
    return {**os.environ, "GOFLAGS": flags, "CGO_ENABLED": "0"}


def _compile(go: str, module: Path, target: Path) -> None:
    flags = f"-s -w -X {_VERSION_VARIABLE}=v{VERSION}"
    command = [go, "build", "-v", "-o", str(target), "-ldflags", flags, _MODULE]
    log = module.parent / "build.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command, cwd=module, env=_environment(), stdout=sink, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        with _stopped_on_error(process):
            _wait(process, log)
    if process.returncode != 0:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-_LINES_SHOWN:])
        raise EngineError(
            f"Building the Pulumi engine with `{go}` failed with exit code {process.returncode}. Last lines:\n{last}"
        )


@contextlib.contextmanager
def _stopped_on_error(process: "subprocess.Popen[bytes]") -> Generator[None]:
    try:
        yield
    except BaseException:
        process.kill()
        process.wait()
        raise


def _wait(process: "subprocess.Popen[bytes]", log: Path) -> None:
    started_s = time.monotonic()
    while True:
        elapsed_s = time.monotonic() - started_s
        if elapsed_s > _BUILD_LIMIT_S:
            raise EngineError(
                f"Building the Pulumi engine took longer than {_BUILD_LIMIT_S // 60} minutes and was stopped."
            )
        try:
            process.wait(timeout=_REPORT_EVERY_S)
        except subprocess.TimeoutExpired:
            elapsed_s = time.monotonic() - started_s
            print(f"engine: {_progress(log)}, {elapsed_s:.0f} s so far", file=sys.stderr, flush=True)
        else:
            return


def _progress(log: Path) -> str:
    """Return the build's progress from Go's output: one line per fetched module, then one per compiled package."""
    lines = log.read_text(errors="replace").splitlines()
    fetched = sum(line.startswith("go: downloading ") for line in lines)
    if fetched == len(lines):
        return f"fetching modules, {fetched} fetched"
    return f"compiling, {len(lines) - fetched} of about {_PACKAGES} packages"


def _take_language_exec(go: str, module: Path, target: Path) -> None:
    """Copy the runner of Python programs from the SDK module that the build downloaded."""
    answer = subprocess.run(
        [go, "list", "-m", "-f", "{{.Dir}}", _SDK_MODULE],
        cwd=module,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    source = Path(answer.stdout.strip()) / "python" / "cmd" / LANGUAGE_EXEC
    if answer.returncode != 0 or not source.is_file():
        raise EngineError(
            f"The module {_SDK_MODULE} does not contain python/cmd/{LANGUAGE_EXEC}, which is required to run Python programs."
        )
    shutil.copyfile(source, target)
    target.chmod(0o755)

"""Build the engine from its Go modules: about five minutes on two cores, once per version and user."""

import shutil
import subprocess
from pathlib import Path

from dev.tools.engine.model import LANGUAGE_EXEC, VERSION, EngineError
from localcloud.go_build import GoBuildError, GoProgram, compile_program, compiler, environment, new_folder

_SDK_MODULE = "github.com/pulumi/pulumi/sdk/v3"
_VERSION_VARIABLE = "github.com/pulumi/pulumi/sdk/v3/go/common/version.Version"
_PROGRAM = GoProgram(
    label="engine",
    name="the Pulumi engine",
    package="github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",
    packages=1670,  # Go 1.26
    linker_flags=f"-s -w -X {_VERSION_VARIABLE}=v{VERSION}",
)


def build(into: Path) -> None:
    """Build the engine into a new folder `into`, together with the runner of Python programs.

    The folder is created atomically. Raises EngineError without Go, or with the compiler's last lines.
    """
    go = compiler()
    if go is None:
        raise EngineError("`go`, needed to build the Pulumi engine, is not on PATH.")
    with new_folder(into, Path(__file__).with_name("golang")) as folder:
        try:
            compile_program(go, _PROGRAM, folder.module, folder.result / "pulumi")
        except GoBuildError as error:
            raise EngineError(str(error)) from error
        _take_language_exec(go, folder.module, folder.result / LANGUAGE_EXEC)


def _take_language_exec(go: str, module: Path, target: Path) -> None:
    """Copy the runner of Python programs from the SDK module that the build downloaded."""
    answer = subprocess.run(
        [go, "list", "-m", "-f", "{{.Dir}}", _SDK_MODULE],
        cwd=module,
        env=environment(),
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

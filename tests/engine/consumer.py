"""Programs outside the checkout that add its packages: the CLI with this checkout's language host, and the YAML language host."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dev.tools.engine import build
from dev.tools.engine.model import VERSION, cache_root
from localcloud.go_build import GoProgram, compile_program, compiler, environment, locked, new_folder

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"gemma-serving": ROOT / "components", "gcp-tpu": ROOT / "packages" / "gcp-tpu"}
LIMIT_S = 900
YAML_HOST = "pulumi-language-yaml"
YAML_MODULE = "github.com/pulumi/pulumi-yaml@v1.38.1"
"""The newest version that the Go module proxy serves. The official distribution contains the host."""
YAML_REQUIRES = (YAML_MODULE, "github.com/pulumi/inflector@v0.2.1")
YAML_SUMS = """\
github.com/pulumi/inflector v0.2.1 h1:bqyiish3tq//vLeLiEstSFE5K7RNjy/ce47ed4QATu8=
github.com/pulumi/inflector v0.2.1/go.mod h1:HUFCjcPTz96YtTuUlwG3i3EZG4WlniBvR9bd+iJxCUY=
github.com/pulumi/pulumi-yaml v1.38.1 h1:FquTa8vjvKXreiBHDmuUD9jaZc5y0WXYvRYey+Wrzd4=
github.com/pulumi/pulumi-yaml v1.38.1/go.mod h1:Vh0fhfZGckj1Bqwdcr3buXjAP+VsseEuPjRl+SsOMdo=
github.com/spf13/cast v1.4.1 h1:s0hze+J0196ZfEMTs80N7UlFt0BDuQ7Q+JDnHiMWKdA=
github.com/spf13/cast v1.4.1/go.mod h1:Qx5cxh0v+4UWYiBimWS+eyWzqEqokIECu5etghLkUJE=
go.opentelemetry.io/otel/bridge/opentracing v1.33.0 h1:eH88qvKdY7ns7Xu6WlJBQNOzZ3MVvBR6tEl2euaYS9w=
go.opentelemetry.io/otel/bridge/opentracing v1.33.0/go.mod h1:FNai/nhRSn/kHyv+V1zaf/30BU8hO/DXo0MvV0PaUS8=
"""


def command_line(folder):
    """Write `pulumi` into a folder: with the language host of this checkout, also if several checkouts share one environment."""
    link = Path(sys.executable).with_name("pulumi").read_text()
    folder.mkdir(parents=True, exist_ok=True)
    cli = folder / "pulumi"
    cli.write_text(re.sub(r'GEMMA_SERVING_ROOT="[^"]*"', f'GEMMA_SERVING_ROOT="{ROOT}/dev"', link))
    cli.chmod(0o755)
    return cli


def pulumi_of(folder):
    """Return a function that runs the CLI with a home of its own and returns what it prints to stdout."""
    cli = command_line(folder / "bin")
    variables = {**os.environ, "PULUMI_HOME": str(folder / "home"), "PULUMI_SKIP_UPDATE_CHECK": "true"}

    def run(*arguments):
        words = [str(cli), *(str(argument) for argument in arguments)]
        done = subprocess.run(
            words, cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def yaml_host():
    """Return the folder of a YAML language host that was built here, or None if the engine comes with one. Skip the test without Go."""
    engine = re.findall(r'"([^"]+)" "\$@"', Path(sys.executable).with_name("pulumi").read_text())[-1]
    if shutil.which(YAML_HOST) or Path(engine).with_name(YAML_HOST).exists():
        return None
    go = compiler()
    if go is None:
        pytest.skip(f"{YAML_HOST} is not installed, and go, needed to build it, is not on PATH")
    into = cache_root() / VERSION / f"yaml-{YAML_MODULE.rpartition('@')[2]}"
    package = f"{YAML_MODULE.partition('@')[0]}/cmd/{YAML_HOST}"
    with locked(cache_root() / VERSION):
        if not into.exists():
            with new_folder(into, Path(build.__file__).with_name("golang")) as made:
                requires = [f"-require={module}" for module in YAML_REQUIRES]
                subprocess.run([go, "mod", "edit", *requires], cwd=made.module, env=environment(), check=True)
                with (made.module / "go.sum").open("a") as sums:
                    sums.write(YAML_SUMS)
                program = GoProgram(label="yaml", name="the YAML language host", package=package, packages=796)
                compile_program(go, program, made.module, made.result / YAML_HOST)
    return into

"""The generator of SDKs of an engine that was built here: refusals, and what the CLI and TypeScript's compiler make of the SDKs."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dev.tools.engine import generator
from dev.tools.engine.model import EngineError
from gcp_tpu_provider.properties import package_schema
from localcloud.go_build import compiler
from tests.agreement.registry_pages import samples
from tests.engine.consumer import PACKAGES, pulumi_of

NO_LOADER = "127.0.0.1:1"
"""No schema of this project refers to another package."""
BUILD_LIMIT_S = 1800
PROGRAMS = {
    "gcp-tpu": """\
import { QueuedResource } from "./index";
new QueuedResource("q", { acceleratorType: "v6e-1", runtimeVersion: "v2-alpha-tpuv6e", zones: ["us-east5-a"] });
""",
    "gemma-serving": """\
import { CloudRunGpuService } from "./index";
new CloudRunGpuService("gemma", {
  project: "my-project-1", serviceName: "gemma", serviceAccount: "a@my-project-1.iam.gserviceaccount.com",
  model: "google/gemma-4-E2B-it", vllm: { maxModelLen: 8192 },
  cloudRun: { region: "us-east4", gpu: "nvidia-l4", cpu: 8, memory: "32Gi", concurrency: 16, maxInstances: 1 },
}).plan.apply((plan) => plan?.fits satisfies boolean | undefined);
""",
}
MISSPELLED = {"gcp-tpu": ("zones", "zonez"), "gemma-serving": ("maxModelLen", "maxModelLength")}

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(BUILD_LIMIT_S),
    pytest.mark.skipif(compiler() is None, reason="go is not on PATH"),
]


@pytest.fixture(scope="module")
def pulumi(tmp_path_factory):
    return pulumi_of(tmp_path_factory.mktemp("pulumi"))


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_invalid_schema_is_refused_in_one_sentence_and_nothing_is_written(tmp_path, subtests):
    resource = {"properties": {"p": {"type": "strng"}}}
    unknown_type = {"name": "x", "version": "0.1.0", "resources": {"x:index:R": resource}}
    for name, schema, sentence in (
        (
            "an unknown type",
            json.dumps(unknown_type),
            r"The schema is invalid: .*#/resources/x:index:R: doesn't validate.*\.",
        ),
        ("no JSON", "{", r"The schema is not a Pulumi package schema: .*\."),
    ):
        with subtests.test(name):
            with pytest.raises(EngineError) as refused:
                generator.generate(schema, "python", tmp_path / "sdk", NO_LOADER)
            assert re.fullmatch(sentence, str(refused.value))
            assert not (tmp_path / "sdk").exists()


def test_the_registrys_sample_has_the_types_of_the_python_sdk(tmp_path):
    generator.generate(package_schema(), "python", tmp_path, NO_LOADER)
    pyright = Path(sys.executable).with_name("pyright")
    found = {}
    for program in (samples()["python"], samples()["python"].replace("zones=", "zonez=")):
        (tmp_path / "program.py").write_text(program)
        command = [pyright, "--pythonpath", sys.executable, "program.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)
        found[program] = done.stdout
    right, wrong = found.values()
    assert "0 errors" in right
    assert 'No parameter named "zonez"' in wrong


@pytest.mark.engine
@pytest.mark.parametrize("package", PACKAGES)
def test_schema_and_sdk_generated_twice_are_equal(pulumi, tmp_path, package):
    schemas = [pulumi("package", "get-schema", PACKAGES[package]) for _ in range(2)]
    assert schemas[0] == schemas[1]
    sdks = []
    for number in range(2):
        out = tmp_path / str(number)
        pulumi("package", "gen-sdk", PACKAGES[package], "--language", "python", "--out", out)
        sdks.append(files_of(out / "python"))
    assert sdks[0] == sdks[1]
    assert any(name.endswith("/pulumi-plugin.json") for name in sdks[0])


@pytest.mark.engine
@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not on PATH")
def test_the_typescript_sdk_has_the_types_of_the_schema(pulumi, tmp_path, package):
    """It is compiled, not run: the language host of Node.js is not available here."""
    schema = pulumi("package", "get-schema", PACKAGES[package])
    for name in ("first", "second"):
        generator.generate(schema, "nodejs", tmp_path / name, NO_LOADER)
    sdk = tmp_path / "first"
    assert files_of(sdk) == files_of(tmp_path / "second")

    def run(command):
        return subprocess.run(
            command.split(), cwd=sdk, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False
        )

    installed = run("npm install --ignore-scripts --no-audit --no-fund")
    assert installed.returncode == 0, installed.stderr
    settings = sdk / "tsconfig.json"
    settings.write_text(settings.read_text().replace('"index.ts"', '"index.ts", "program.ts"'))
    program, (right, wrong) = PROGRAMS[package], MISSPELLED[package]
    (sdk / "program.ts").write_text(program)
    compiled = run("npx --no-install tsc --noEmit")
    assert (compiled.returncode, compiled.stdout) == (0, "")
    assert program.count(right) == 1
    (sdk / "program.ts").write_text(program.replace(right, wrong))
    assert f"'{wrong}' does not exist in type" in run("npx --no-install tsc --noEmit").stdout

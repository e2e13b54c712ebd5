"""SDKs of the provider in three languages: packed as their registries take them, then used by a program in that language.

Go is compiled at night only: the Pulumi module and its dependencies take minutes.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from authors.release import sdks
from localcloud.go_build import compiler
from tools.languages import programs

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[3]
SCHEMA = ROOT / "packages" / "gcp-tpu" / "schema.json"
VERSION = json.loads(SCHEMA.read_text())["version"]
BUILD_LIMIT_S = 1800
NIGHTLY = "GEMMA_SERVING_NIGHTLY"

PYTHON = """\
import pulumi
import pulumi_gcp_tpu as gcp_tpu

capacity = gcp_tpu.QueuedResource(
    "serve",
    accelerator_type="v6e-4",
    runtime_version="v2-alpha-tpuv6e",
    provisioning_model="flex-start",
    zones=["us-east5-a"],
    service_account=gcp_tpu.ServiceAccountArgs(email="server@my-project-1.iam.gserviceaccount.com"),
)
pulumi.export("zone", capacity.zone)
"""
NODEJS = """\
import * as gcpTpu from "@gemma-serving/gcp-tpu";

const capacity = new gcpTpu.QueuedResource("serve", {
    acceleratorType: "v6e-4",
    runtimeVersion: "v2-alpha-tpuv6e",
    provisioningModel: "flex-start",
    zones: ["us-east5-a"],
    serviceAccount: { email: "server@my-project-1.iam.gserviceaccount.com" },
});
export const zone = capacity.zone;
"""
GO = """\
package main

import (
	"MODULE"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		capacity, err := gcptpu.NewQueuedResource(ctx, "serve", &gcptpu.QueuedResourceArgs{
			AcceleratorType:   pulumi.String("v6e-4"),
			RuntimeVersion:    pulumi.String("v2-alpha-tpuv6e"),
			ProvisioningModel: pulumi.String("flex-start"),
			Zones:             pulumi.StringArray{pulumi.String("us-east5-a")},
		})
		if err != nil {
			return err
		}
		ctx.Export("zone", capacity.Zone)
		return nil
	})
}
"""


@pytest.fixture(scope="module", autouse=True)
def _generator():
    if programs.found(programs.GENERATOR) is None and compiler() is None:
        pytest.skip(programs.NO_GO)
    programs.ensure()


def needs(program):
    if shutil.which(program) is None:
        pytest.skip(f"`{program}` is not on PATH")


def run(*command, folder, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False
    )


def packed_twice(language, tmp_path):
    """Pack an SDK twice, and return the files after a comparison of their bytes."""
    made = [
        sdks.pack(sdks.generate(SCHEMA, language, tmp_path / f"sources{count}"), language, tmp_path / f"dist{count}")
        for count in (1, 2)
    ]
    assert [file.name for file in made[0]] == [file.name for file in made[1]]
    assert all(one.read_bytes() == two.read_bytes() for one, two in zip(*made, strict=True))
    return made[0]


@pytest.mark.timeout(BUILD_LIMIT_S)
def test_a_python_program_imports_the_wheel_and_its_types_are_checked(tmp_path, subtests):
    wheel, archive = packed_twice("python", tmp_path)
    assert wheel.name == f"pulumi_gcp_tpu-{VERSION}-py3-none-any.whl"
    with tarfile.open(archive) as sources:
        assert f"pulumi_gcp_tpu-{VERSION}/PKG-INFO" in sources.getnames()
    installed = tmp_path / "installed"
    shutil.unpack_archive(wheel, installed, "zip")
    assert (installed / "pulumi_gcp_tpu" / "py.typed").is_file()
    assert (installed / "pulumi_gcp_tpu" / "config" / "__init__.pyi").is_file()
    code = "import pulumi_gcp_tpu as sdk; print(sdk.QueuedResource.__module__, sdk._utilities.get_version())"
    done = run(sys.executable, "-c", code, folder=tmp_path, PYTHONPATH=str(installed))
    assert done.stdout.split() == ["pulumi_gcp_tpu.queued_resource", VERSION], done.stderr
    settings = {"include": ["program.py"], "extraPaths": ["installed"], "venvPath": str(ROOT), "venv": ".venv"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    for name, program, errors in (
        ("a correct program", PYTHON, 0),
        ("a number for a text", PYTHON.replace('"v6e-4"', "4"), 1),
        ("an argument that does not exist", PYTHON.replace("zones=", "regions="), 1),
    ):
        with subtests.test(name):
            (tmp_path / "program.py").write_text(program)
            done = run(str(Path(sys.executable).with_name("pyright")), "--outputjson", folder=tmp_path)
            report = json.loads(done.stdout)
            assert report["summary"]["filesAnalyzed"] == 1
            assert report["summary"]["errorCount"] == errors, report["generalDiagnostics"]


@pytest.mark.timeout(BUILD_LIMIT_S)
def test_a_typescript_program_compiles_with_the_installed_package(tmp_path, subtests):
    needs("npm")
    (package,) = packed_twice("nodejs", tmp_path)
    assert package.name == f"gemma-serving-gcp-tpu-{VERSION}.tgz"
    program = tmp_path / "program"
    shutil.copytree(sdks.NPM, program)
    done = run("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", str(package), folder=program)
    assert done.returncode == 0, done.stdout + done.stderr
    options = {"strict": True, "target": "ES2022", "module": "nodenext", "moduleResolution": "nodenext", "noEmit": True}
    (program / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "files": ["index.ts"]}))
    for name, text, message in (
        ("a correct program", NODEJS, ""),
        ("a number for a text", NODEJS.replace('"v6e-4"', "4"), "Type 'number' is not assignable to type"),
        ("an argument that does not exist", NODEJS.replace("zones:", "regions:"), "'regions' does not exist"),
    ):
        with subtests.test(name):
            (program / "index.ts").write_text(text)
            done = run("node", "node_modules/typescript/bin/tsc", folder=program)
            assert message in done.stdout
            assert (done.returncode == 0) == (message == ""), done.stdout
    with subtests.test("Node.js loads it, and it names its plugin's version"):
        code = "const sdk = require('@gemma-serving/gcp-tpu'); console.log(sdk.QueuedResource.name)"
        done = run("node", "-e", code, folder=program)
        assert done.stdout == "QueuedResource\n", done.stderr
        facts = json.loads((program / "node_modules/@gemma-serving/gcp-tpu/package.json").read_text())
        assert facts["pulumi"]["version"] == facts["version"] == VERSION


@pytest.mark.timeout(BUILD_LIMIT_S)
def test_what_has_no_sdk_is_refused_and_nothing_is_written(tmp_path, subtests):
    document = json.loads(SCHEMA.read_text())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    properties = {"p": {"$ref": "#/types/gcp-tpu:index:Missing"}}
    dangling = {**document, "types": {"gcp-tpu:index:T": {"type": "object", "properties": properties}}}
    without_go = {**document, "language": {"go": {}}}
    for name, text, language, out, message in (
        ("a folder with files", document, "python", "full", "full is not empty"),
        ("a wrong reference", dangling, "nodejs", "new", "type gcp-tpu:index:Missing not found in package gcp-tpu."),
        ("no path of the Go module", without_go, "go", "new", r"does not set language.go.importBasePath"),
    ):
        with subtests.test(name):
            (tmp_path / "schema.json").write_text(json.dumps(text))
            with pytest.raises(sdks.SdkError) as refused:
                sdks.generate(tmp_path / "schema.json", language, tmp_path / out)
            assert message in str(refused.value)
            assert "\n" not in str(refused.value)
            assert not (tmp_path / "new").exists()
    with subtests.test("no schema"), pytest.raises(sdks.SdkError, match=r"absent\.json cannot be read \(No such file"):
        sdks.generate(tmp_path / "absent.json", "python", tmp_path / "new")
    with subtests.test("sources that do not compile"):
        needs("npm")
        folder = sdks.generate(SCHEMA, "nodejs", tmp_path / "broken")
        (folder / "provider.ts").write_text("export const x: string = 4;\n")
        with pytest.raises(
            sdks.SdkError, match=r"broken does not compile: `node .* exited with code [12]\. Last lines:"
        ):
            sdks.pack(folder, "nodejs", tmp_path / "dist")
        assert list((tmp_path / "dist").iterdir()) == []


@pytest.mark.timeout(BUILD_LIMIT_S)
def test_a_go_program_compiles_with_the_module(tmp_path, subtests):
    needs("go")
    (archive,) = packed_twice("go", tmp_path)
    assert archive.name == f"gcptpu-go-v{VERSION}.zip"
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    module = tmp_path / "unpacked" / "gcptpu"
    path = json.loads(SCHEMA.read_text())["language"]["go"]["importBasePath"]
    assert (module / "go.mod").read_text().startswith(f"module {path}\n")
    if not os.environ.get(NIGHTLY):
        pytest.skip(f"compiles Pulumi's Go module, minutes of CPU time: set {NIGHTLY}=1")
    offline = {"GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    for words in (("build", "./..."), ("vet", "./...")):
        done = run("go", *words, folder=module, **offline)
        assert done.returncode == 0, done.stderr
    program = tmp_path / "program"
    program.mkdir()
    (program / "main.go").write_text(GO.replace("MODULE", path))
    required = f"require {path} v{VERSION}\nreplace {path} => {module}\n"
    (program / "go.mod").write_text(
        (module / "go.mod").read_text().replace(f"module {path}", "module program") + required
    )
    shutil.copyfile(module / "go.sum", program / "go.sum")
    done = run("go", "mod", "tidy", folder=program)
    assert done.returncode == 0, done.stderr
    for name, text, message in (
        ("a correct program", GO, ""),
        ("a text of Go for an input", GO.replace('pulumi.String("v6e-4")', "4"), "cannot use 4"),
        ("an argument that does not exist", GO.replace("Zones:", "Regions:"), "unknown field Regions"),
    ):
        with subtests.test(name):
            (program / "main.go").write_text(text.replace("MODULE", path))
            done = run("go", "vet", ".", folder=program, **offline)
            assert message in done.stderr
            assert (done.returncode == 0) == (message == ""), done.stderr

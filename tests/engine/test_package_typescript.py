"""examples/package_typescript outside the checkout, by the Automation API: its inline program needs no language host of Node.js."""

import json
import os
import shutil

import pytest

from dev.tools.engine import generator
from tests.engine.conftest import HF_CANARY, PROJECT, ROOT, assert_nowhere_in_clear, open_workspace
from tests.engine.consumer import PACKAGES, command_line, pulumi_of

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not on PATH"),
]
NO_LOADER = "127.0.0.1:1"
"""The schema of the package refers to no other package."""
DRIVER = """\
import { LocalWorkspace } from "@pulumi/pulumi/automation/index.js";

async function main(command: string) {
  const program = async () => ({ ...(await import("./index.js")) });
  const inline = { stackName: "dev", projectName: "package-typescript", program };
  const stack = await LocalWorkspace.createOrSelectStack(inline, { workDir: process.cwd() });
  const onOutput = (text: string) => process.stdout.write(text);
  if (command === "preview") await stack.preview({ onOutput });
  if (command === "same") await stack.preview({ onOutput, expectNoChanges: true });
  if (command === "up") await stack.up({ onOutput });
  if (command === "destroy") await stack.destroy({ onOutput });
}

main(process.argv[2]).catch(() => process.exit(1));
"""
SECOND = """
new gemma.CloudRunGpuService("other", {
  project,
  serviceName: "package-other",
  serviceAccount: account,
  model: "google/gemma-4-12B-it",
  secrets: { HF_TOKEN: token.versionName },
  cloudRun: { region: "us-east4", gpu: "nvidia-l4", cpu: 8, memory: "20Gi", concurrency: 16, maxInstances: 1 },
});
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    with open_workspace(tmp_path_factory.mktemp("typescript"), cold=True) as opened:
        opened.post(f"iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "package-server"})
        yield opened


@pytest.fixture(scope="module")
def typescript(workspace, tmp_path_factory):
    """Return a function that compiles a program and drives it."""
    folder = workspace.folder / "consumer"
    shutil.copytree(ROOT / "examples" / "package_typescript", folder)
    with (folder / "Pulumi.yaml").open("a") as settings:
        settings.write(f"plugins: {{providers: [{{name: gemma-serving, path: {PACKAGES['gemma-serving']}}}]}}\n")
    sdk = folder / "sdks" / "gemma-serving"
    schema = pulumi_of(tmp_path_factory.mktemp("schema"))("package", "get-schema", PACKAGES["gemma-serving"])
    generator.generate(schema, "nodejs", sdk, NO_LOADER)
    path = os.pathsep.join([str(command_line(workspace.folder / "bin").parent), workspace.environment["PATH"]])

    def run(lines, **options):
        return workspace.run("bash", "-euc", f"cd {folder}\n{lines}", environment={"PATH": path}, **options)

    npm_name = json.loads((sdk / "package.json").read_text())["name"]
    run(f"""\
npm install --ignore-scripts --no-audit --no-fund
mkdir -p $(dirname node_modules/{npm_name})
ln -s {sdk} node_modules/{npm_name}
npx --no-install tsc -p {sdk}
cp {sdk}/package.json {sdk}/bin
pulumi stack init dev
pulumi config set gcp:project {PROJECT}
pulumi config set serviceAccount package-server@{PROJECT}.iam.gserviceaccount.com""")
    run("pulumi config set --secret hfToken", stdin=HF_CANARY)
    (folder / "driver.ts").write_text(DRIVER)
    written = (folder / "index.ts").read_text()

    def drive(command, *changes, more="", **options):
        text = written
        for before, after in changes:
            assert text.count(before) == 1
            text = text.replace(before, after)
        (folder / "index.ts").write_text(text + more)
        run("npx --no-install tsc")
        return run(f"node bin/driver.js {command}", **options).out

    return drive


def test_a_program_in_typescript_is_previewed_refused_deployed_changed_and_destroyed(workspace, typescript):
    existed = workspace.made("")
    assert "+ 7 to create" in typescript("preview")
    blocked = typescript("preview", ("gemma-4-E2B-it", "gemma-4-31B-it"), more=SECOND, expect=1)
    for name, model in (("gemma", "31B"), ("other", "12B")):
        assert f'CloudRunGpuService "{name}":' in blocked
        assert blocked.count(f"FIT01: google/gemma-4-{model}-it does not fit on L4") == 1
    assert set(workspace.made("")) <= set(existed)
    assert "+ 7 created" in typescript("up")
    assert "7 unchanged" in typescript("same")
    changed = typescript("up", ("8192", "4096"))
    assert "~ 1 updated" in changed
    (service,) = [name for name in workspace.made("package-gemma") if "/services/" in name]
    assert "--max-model-len=4096" in str(workspace.get("run", f"v2/{service}"))
    assert_nowhere_in_clear(workspace, HF_CANARY)
    typescript("destroy")
    assert set(workspace.made("")) <= set(existed)

"""Install the wheels and the provider of a release as a user does, and use them. No checkout and no cloud account is needed.

Usage: python rehearse.py [FOLDER]

FOLDER has the artefacts (default: next to this file). Requirements: Python 3.11 to 3.13, `pulumi` on PATH, and the package registries.
Google is simulated by the local cloud of the release. Environments, plugins and stacks are made in a temporary folder, which is deleted.

Exit code 0: everything works, 1: something failed.
"""

# This file is copied to the artefacts as rehearse.py, so it imports the standard library alone.

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LIMIT_S: Final = 1800
_LINES: Final = 25
"""Lines of a failed command's output that are shown."""
_HIDDEN: Final = (
    "PULUMI_",
    "GOOGLE_",
    "GCLOUD_",
    "CLOUDSDK_",
    "PYTHON",
    "VIRTUAL_ENV",
    "PIP_REQUIRE",
    "HF_",
    "HUGGING",
)
"""Prefixes of variables that a command does not inherit: credentials, real projects, and the environment of the caller."""
_GIVEN: Final = ("PULUMI_PYTHON_CMD",)


class FailedError(Exception):
    """The release does not work. The message names the fault, with the end of the output."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """The folder of the artefacts, and a temporary one for the installed programs."""

    artefacts: Path
    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables of every command."""
        kept = {name: value for name, value in os.environ.items() if name in _GIVEN or not name.startswith(_HIDDEN)}
        return {
            **kept,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PULUMI_CONFIG_PASSPHRASE": "rehearsal",
            "PULUMI_HOME": str(self.folder / "pulumi-home"),
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PYTHONNOUSERSITE": "1",
        }

    def one(self, pattern: str) -> Path:
        """Return the only artefact with this name. Raises FailedError if their number differs."""
        found = list(self.artefacts.glob(pattern))
        if len(found) != 1:
            raise FailedError(f"{len(found)} artefacts in {self.artefacts} match {pattern}; one is expected")
        return found[0]

    def run(self, *command: object, cwd: Path | None = None) -> str:
        """Run a command and return its output. Raises FailedError if it fails."""
        words = [str(word) for word in command]
        shown = " ".join(words).partition("\n")[0]
        print(f"$ {shown}", flush=True)
        try:
            done = subprocess.run(
                words,
                cwd=cwd or self.folder,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise FailedError(f"`{shown}` did not finish: {error}") from error
        if done.returncode:
            end = "\n".join(done.stdout.splitlines()[-_LINES:])
            raise FailedError(f"`{shown}` ended with {done.returncode}:\n{end}")
        return done.stdout

    def environment(self, name: str, *wanted: object) -> Path:
        """Create a virtual environment with these packages alone, and return the folder of its programs."""
        programs = self.folder / name / "bin"
        self.run(sys.executable, "-m", "venv", self.folder / name)
        self.run(programs / "python", "-m", "pip", "install", "--quiet", *wanted)
        return programs


def checksums(at: Workplace) -> None:
    """Compare every artefact with SHA256SUMS."""
    lines = at.one("SHA256SUMS").read_text(encoding="utf-8").splitlines()
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    found = {path.name for path in at.artefacts.iterdir()} - {"SHA256SUMS"}
    if found != listed.keys():
        raise FailedError(f"{', '.join(sorted(found ^ listed.keys()))}: not both in the folder and in SHA256SUMS")
    for name, digest in listed.items():
        if hashlib.sha256((at.artefacts / name).read_bytes()).hexdigest() != digest:
            raise FailedError(f"{name} is not the file that SHA256SUMS lists")


_PROJECT: Final = """name: rehearsal
runtime:
  name: python
  options:
    toolchain: pip
    virtualenv: {environment}
"""
_PROGRAM: Final = """import pulumi


class QueuedResource(pulumi.CustomResource):
    state: pulumi.Output[str]


inputs = {
    "zones": ["us-east5-b", "us-east5-a"],
    "acceleratorType": "v6e-1",
    "runtimeVersion": "v2-alpha-tpuv6e",
    "provisioningModel": "flex-start",
    "maxRunDurationS": 3600,
}
capacity = QueuedResource("gcp-tpu:index:QueuedResource", "capacity", {**inputs, "state": None})
pulumi.export("state", capacity.state)
"""
_LIFE: Final = """set -e
pulumi stack init dev --non-interactive
pulumi preview --non-interactive
pulumi up --yes --skip-preview --non-interactive
pulumi up --yes --skip-preview --expect-no-changes --non-interactive
echo "OUTPUTS $(pulumi stack output --json | tr -d '\\n')"
pulumi destroy --yes --skip-preview --non-interactive
"""
"""The life of a stack. A second `up` without changes shows that the state has the declared resources."""


def provider(at: Workplace, cloud: Path) -> None:
    """Start the command of the provider's wheel, and create a queued resource with the plugin's archive on a new local cloud."""
    wheel = at.environment("provider", at.one("gcp_tpu_provider-*.whl"))
    at.run("pulumi", "package", "get-schema", wheel / "pulumi-resource-gcp-tpu")
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    archive = at.one(f"pulumi-resource-gcp-tpu-v*-{sys.platform}-{machine}.tar.gz")
    version = archive.name.split("-")[4].removeprefix("v")
    at.run("pulumi", "plugin", "install", "resource", "gcp-tpu", version, "--file", archive)
    folder = at.folder / "program"
    folder.mkdir()
    environment = at.environment("pulumi", "pulumi").parent
    (folder / "Pulumi.yaml").write_text(_PROJECT.format(environment=environment), encoding="utf-8")
    (folder / "__main__.py").write_text(_PROGRAM, encoding="utf-8")
    run = (cloud / "python", "-m", "localcloud", "run", "--scenario", "prepared", "--", "sh", "-c", _LIFE)
    (outputs,) = re.findall(r"^OUTPUTS (.*)$", at.run(*run, cwd=folder), re.MULTILINE)
    if json.loads(outputs) != {"state": "ACTIVE"}:
        raise FailedError(f"the stack's outputs are {outputs}; the state ACTIVE is expected")


_FOREIGN: Final = ("components", "scripts", "stacks")
"""Folders of a user with names that a checkout of the product has, too."""
INSTALLED: Final = """set -e
for name in $(gemma help | sed -n 's/^  \\([a-z_]*\\)  .*/\\1/p'); do gemma $name --help > /dev/null; done
gemma init second --like l4-12b-qat
gemma plan second
python assistant.py
gemma stage_model second --list
gemma teardown second --yes
localcloud try --list
"""
"""Commands that start programs of the product, which an installation finds in another place than a checkout."""
LIFE: Final = """
gemma doctor first
gemma capacity first || test $? = 1
gemma up first --yes
pulumi preview --stack first --expect-no-changes --non-interactive
gemma status first
gemma alerts first || test $? = 1
gemma logs first --lines 5
gemma connect first -- true
gemma chat first "Say hello."
gemma smoke first
gemma bench first --concurrency 1,2 --requests 8 --input-tokens 64 --output-tokens 16 --allow-invalid --out results
gemma up first --restart --yes
gemma up first --dry-run
gemma preview plans --out plans.json
echo hf_rehearsalrehearsalrehearsal | gemma save_token hfToken --stack first
gemma teardown first --yes
"""
"""Every other command."""
_ASSISTANT: Final = """import os, pathlib, sys, time
import anyio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

def server(*options):
    return Client(stdio_client(StdioServerParameters(command="gemma", args=["agent", *options], env=dict(os.environ))))

async def answer(client, tool, **arguments):
    found = await client.call_tool(tool, arguments)
    while (found.structured_content or {}).get("running"):
        found = await client.call_tool("wait", {"run": found.structured_content["run"], "seconds": 600})
    print(tool, str(found.structured_content or found.content)[:200], flush=True)
    assert not found.is_error, found
    return found.structured_content

async def use():
    async with server() as client:
        await answer(client, "plan", stack="second")
        await answer(client, "plan", stack="second", gke=True)
        await answer(client, "status")
    async with server("--allow", "up,stage,ask,smoke,scale", "--max-hours", "2", "--answer-within", "1") as client:
        await answer(client, "stage_weights", stack="second")
        planned = await answer(client, "preview", stack="second")
        assert (await answer(client, "up", stack="second", plan=planned["plan"]))["ok"]
        assert limit.exists()
        for tool, arguments in WALK if sys.argv[1:] else ():
            await answer(client, tool, **arguments)

of_stack = {"stack": "second"}
WALK = (
    ("list_weights", of_stack),
    ("ask", {**of_stack, "prompt": "hello", "max_tokens": 16}),
    ("status", {**of_stack, "wake": True, "metrics": True}),
    ("logs", {**of_stack, "summarize": True}),
    ("smoke", of_stack),
    ("plan", {**of_stack, "gcloud": True}),
    ("plan", {"finding": "FIT01"}),
    ("plan", {"compare": [], "model": "12B"}),
    ("plan", {"solve": True, "model": "12B", "workload": "in=700,out=300,users=4"}),
    ("capacity", of_stack),
    ("doctor", of_stack),
    ("alerts", of_stack),
    ("preview", {**of_stack, "set": ["cloudRun.maxInstances=2"]}),
)
limit = pathlib.Path(".work/agent-limits/second")
anyio.run(use)
end_s = time.monotonic() + 600
while limit.exists() and time.monotonic() < end_s:  # the server's end is the end of the limit
    time.sleep(0.5)
log = pathlib.Path(".work/agent-limits.log").read_text()
assert not limit.exists() and "deleting the stack: the last update of stack second is the approved plan-" in log, log
print("the limit ended the server")
"""
"""The official client of the protocol calls a tool that computes, one that asks, and those that deploy a service within a limit in hours.

With an argument, it then walks the other functions of document 002.
"""


def project(at: Workplace) -> None:
    """Write a project's folder with the command of the wheel, install its lock and the assistant's packages, and use it."""
    command = at.environment("command", at.one("gemma_serving-*.whl"))
    folder = at.folder / "project"
    folder.mkdir()
    at.run(command / "gemma", "init", "first", "--like", "tpu-v6e1", cwd=folder)
    at.run(sys.executable, "-m", "venv", ".venv", cwd=folder)
    at.run(".venv/bin/pip", "install", "--quiet", "--require-hashes", "-r", "requirements.txt", cwd=folder)
    at.run(".venv/bin/pip", "install", "--quiet", "mcp", cwd=folder)
    shown = use(at, folder, INSTALLED.replace("assistant.py", "assistant.py walk") + LIFE)
    for words in ("first deployed in", "smoke passed"):
        if words not in shown:
            raise FailedError(f"the stack's output lacks {words!r}:\n{shown}")
    if not (folder / "results" / "report.html").is_file():
        raise FailedError(f"the load test wrote no report.html:\n{shown}")


def use(at: Workplace, folder: Path, script: str) -> str:
    """Run a script on the local cloud, with the programs of a user's `.venv`, and return its output.

    The release is not at fault for a point of the load test that a busy machine makes invalid.
    """
    for name in _FOREIGN:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise SystemExit('a module of the user')\n", encoding="utf-8")
    (folder / "assistant.py").write_text(_ASSISTANT, encoding="utf-8")
    run = 'PATH="$PWD/.venv/bin:$PATH"\nlocalcloud run --scenario prepared -- sh -c "$0"'
    shown = at.run("sh", "-c", run, script, cwd=folder)
    for words in ("the limit ended the server", "No leaked resources"):
        if words not in shown:
            raise FailedError(f"the stack's output lacks {words!r}:\n{shown}")
    return shown


def main(arguments: Sequence[str]) -> int:
    """Run the rehearsal and return the exit code."""
    artefacts = Path(arguments[0] if arguments else __file__).resolve()
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        at = Workplace(artefacts if artefacts.is_dir() else artefacts.parent, Path(folder))
        try:
            checksums(at)
            cloud = at.environment("cloud", at.one("localcloud_google-*.whl"), "pulumi", "pulumi-gcp")
            provider(at, cloud)
            project(at)
        except FailedError as error:
            print(f"rehearse: FAILED: {error}", flush=True)
            return 1
    print("rehearse: the checksums, the provider, and a project's folder with its load test work.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

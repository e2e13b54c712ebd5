"""What is installed is what was locked, and who installs it can read no credentials."""

import re
from pathlib import Path

import pytest
import yaml

from tests.test_pages import PAGES
from tests.tracked import tracked

ROOT = Path(__file__).resolve().parents[2]
LOCKED = sorted(
    [
        ROOT / "requirements.txt",
        *ROOT.glob("requirements/*.txt"),
        *(
            ROOT / name / "requirements.txt"
            for name in ("packages/gcp-tpu", "packages/loadtest", "packages/localcloud")
        ),
    ]
)
APART = [
    ROOT / "dev" / "tools" / "installer.txt",
    ROOT / "dev" / "judges" / "real_vllm" / "requirements.txt",
    ROOT / "dev" / "tools" / "audit.txt",
    ROOT / "dev" / "tools" / "site.txt",
    ROOT / "dev" / "authors" / "release" / "backend.txt",
    ROOT / "tests" / "scripts" / "connect" / "clients.txt",
]
"""Locks of environments that share nothing with the project's: installer, real vLLM, auditor, site, build backend, three clients."""
COMPILER = ROOT / "dev" / "judges" / "tpu_compiler" / "locks"
"""Locks of the TPU compiler, by release."""
OVERRIDES = ROOT / "dev" / "judges" / "real_vllm" / "overrides.txt"
PIN = re.compile(r"(?P<pin>[\w.-]+==[\w.!+-]+)(?: ; [^\\]+)? \\")
HASH = re.compile(r"    --hash=sha256:(?P<hash>[0-9a-f]{64})(?: \\)?")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
INSTALLING = re.compile(r"make (setup|check|test|long|demo|site)|\.ci/run|pip install")


def hashes(path):
    """The hashes of each pin of a file. Every line is a pin or a hash: no index, no link, no option."""
    found = {}
    for line in path.read_text().splitlines():
        pin, hashed = PIN.fullmatch(line), HASH.fullmatch(line)
        assert pin or hashed, line
        if pin:
            current = found.setdefault(pin["pin"], set())
        else:
            current.add(hashed["hash"])
    return found


@pytest.mark.parametrize("path", LOCKED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_pin_has_hashes_and_no_file_names_a_registry(path):
    found = hashes(path)
    assert len(found) > 10
    assert [pin for pin, known in found.items() if not known] == []
    everywhere = hashes(ROOT / "requirements/dev.txt")
    assert {pin: known for pin, known in found.items() if everywhere[pin] != known} == {}


@pytest.mark.parametrize("path", APART, ids=lambda path: path.name)
def test_the_locks_apart_have_hashes_and_name_no_registry(path):
    found = hashes(path)
    assert [pin for pin, known in found.items() if not known] == []
    asked = path.with_suffix(".in").read_text().split()
    assert set(asked) <= set(found)
    for pinned in re.findall(r"^[\w.-]+==\S+$", OVERRIDES.read_text(), re.MULTILINE):
        assert pinned in hashes(APART[1])


def lock_files():
    """Every file of the repository with hashes of packages. A link is the file that it names."""
    files = [path for path in tracked(suffix="") if not path.is_symlink()]
    return {
        path.relative_to(ROOT).as_posix()
        for path in files
        if path.name == "go.sum" or (path.suffix == ".txt" and "--hash=sha256:" in path.read_text())
    }


def test_every_lock_is_audited_each_night_or_named_on_the_security_page():
    audited = set(re.search(r"^AUDITED = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split())
    page = (
        (ROOT / "SECURITY.md").read_text().partition("- **Lock files that no audit covers.**")[2].partition("\n- ")[0]
    )
    named = set(re.findall(r"`([^`\s]+/[^`\s]+\.(?:txt|sum))`", page))
    assert named & audited == set()
    assert named | audited == lock_files()
    assert {path.relative_to(ROOT).as_posix() for path in (*LOCKED, *APART)} <= lock_files()
    newest = max(COMPILER.glob("*.txt"), key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)[:3]])
    assert newest.relative_to(ROOT).as_posix() in audited
    assert "run: make audit" in (ROOT / ".github/workflows/nightly.yml").read_text()
    recipe = (ROOT / "Makefile").read_text().partition("\naudit: ")[2].partition("\n\n")[0]
    assert "--strict" in recipe, "a package without an answer would pass"


def test_every_command_that_installs_requires_the_hashes():
    texts = {path: path.read_text() for path in [ROOT / "Makefile", *PAGES]}
    texts |= {path: path.read_text() for path in [*ROOT.glob("*/README.md"), *WORKFLOWS, *ROOT.glob(".ci/*")]}
    texts |= {path: path.read_text() for path in [*ROOT.glob("packages/gcp-tpu/gcp_tpu_provider/*.py")]}
    commands = [
        (path.name, command)
        for path, text in texts.items()
        if path.name not in {"CHANGELOG.md", "folder.md"}  # a wheel states no hash of itself, and the page says so
        for command in re.findall(r"pip install[^`\n]*-r [^`\n]*", text)
    ]
    assert len(commands) >= 4
    assert [command for command in commands if "--require-hashes" not in command[1]] == []


def jobs():
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        for name, job in workflow["jobs"].items():
            if "steps" in job:  # others call a workflow that is here too
                yield f"{path.name}/{name}", workflow, job


def installs(job):
    return any(INSTALLING.search(step.get("run", "")) for step in job["steps"])


def test_a_job_that_installs_packages_of_a_pull_request_can_read_no_credentials():
    """Code of a package runs while it is installed, and a job's variables and its identity are open to each of its steps."""
    checked = []
    for name, workflow, job in jobs():
        triggers = workflow[True] if True in workflow else workflow["on"]  # YAML 1.1 reads `on` as true
        if not installs(job) or not {"pull_request", "workflow_call"} & set(triggers):
            continue
        allowed = job.get("permissions", workflow["permissions"])
        assert allowed == {"contents": "read"}, name
        assert "secrets." not in yaml.safe_dump(job), name
        assert "google-github-actions" not in yaml.safe_dump(job), name
        checked.append(name)
    assert {"set-up.yml/set-up", "test.yml/test"} <= set(checked)


def test_secrets_are_given_to_single_steps_only():
    for name, workflow, job in jobs():
        for given in (workflow.get("env", {}), job.get("env", {})):
            assert "secrets." not in str(given), name
            assert "github.token" not in str(given), name


def test_a_job_that_gets_credentials_installs_nothing():
    """test_workflows names these jobs with their accounts."""
    found = {name: installs(job) for name, _, job in jobs() if "google-github-actions/auth" in str(job)}
    assert found == dict.fromkeys(found, False)
    assert len(found) > 5


def test_files_with_credentials_and_results_are_ignored():
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"gha-creds-*.json", "results/", ".localcloud/"} <= set(ignored)

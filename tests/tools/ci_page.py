"""The pages about CI as data: their commands as a shell would run them, and the workflows that they are for."""

import json
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in sorted((GITHUB / "workflows").glob("*.yml"))}
PAGE = (ROOT / "docs" / "ci.md").read_text()
REPOSITORY_ID = "987654321"
TEAM = 2
"""People who can write to the repository, where a test is not about their number."""


_STUBS = r"""
gcloud() { for word in "$@"; do printf '%s\n' "$word"; done; echo END; }
gh() {
    {
        for word in "$@"; do printf '%s\n' "$word"; done
        echo BODY
        case " $* " in *" --input - "*) cat ;; esac
        echo END
    } >> gh.txt
    case "$*" in
        "api user "*) echo 4242 ;;
        "api repos/my-org/gemma-serving/collaborators "*) echo "$PEOPLE" ;;
    esac
}
"""
"""Functions that note what they are called with: gcloud on standard output, gh in a file. A reviewer has the number 4242.

PEOPLE is how many people can write to the repository."""


@cache
def _noted(people, *, is_clone=True):
    """Return, for a repository of so many people, what gcloud and gh would be called with, and the files that the page's commands write."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[1:])
    script = re.sub(r"^sh (\S+\.sh) .*$", lambda named: (ROOT / named[1]).read_text(), blocks, flags=re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        for name in (".github", *(["packages/gcp-tpu"] if is_clone else [])):
            (Path(folder) / name).mkdir(parents=True)
        done = subprocess.run(
            ["sh", "-eu", "-c", f"PEOPLE={people}\n{_STUBS}{script}"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
        written = {path.name: path.read_text() for path in Path(folder).rglob("*") if path.is_file()}
    return done.stdout, written.pop("gh.txt"), written


def page_commands():
    """Return the gcloud commands of the page as a shell would run them: variables set, loops unrolled."""
    return [block.splitlines() for block in _noted(TEAM)[0].split("END\n") if block]


def page_calls(people=TEAM, *, is_clone=True):
    """Return the gh commands of the page in the same way, each with the JSON document that it sends; None without one."""
    blocks = [block.partition("BODY\n") for block in _noted(people, is_clone=is_clone)[1].split("END\n") if block]
    return [(words.splitlines(), json.loads(body) if body else None) for words, _, body in blocks]


def page_files():
    """Return the text of the files that the commands of the page write, by name."""
    return _noted(TEAM)[2]


def account_grants(account, project="my-project", number="123456789012"):
    """Return the roles that the page grants an account of the workflows on a project, each with its condition's expression or ""."""
    found = {}
    for command in page_commands():
        words = [word.replace("my-project", project).replace("123456789012", number) for word in command]
        options = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
        if words[:2] == ["projects", "add-iam-policy-binding"] and f":{account}@" in options["member"]:
            found[options["role"]] = options["condition"].partition(";expression=")[2]
    return found


def custom_roles():
    """Return the custom roles that the page creates: id to permissions."""
    found = {}
    for command in page_commands():
        if command[:3] == ["iam", "roles", "create"]:
            (permissions,) = [word for word in command if word.startswith("--permissions=")]
            found[command[3]] = permissions.partition("=")[2].split(",")
    return found


def account_roles(account):
    """Return the roles on the project that the page grants to an account of the workflows."""
    return set(account_grants(account))


def bucket_roles(account):
    """Return the roles on buckets that the page grants to an account: bucket to roles."""
    found = {}
    for command in page_commands():
        options = dict(word[2:].partition("=")[::2] for word in command if word.startswith("--"))
        if command[:3] == ["storage", "buckets", "add-iam-policy-binding"] and f":{account}@" in options["member"]:
            found.setdefault(command[3], set()).add(options["role"])
    return found


def step_script(workflow, step):
    """Return the script of a workflow's step, by its name."""
    steps = [each for job in WORKFLOWS[workflow]["jobs"].values() for each in job.get("steps", ())]
    (found,) = [each["run"] for each in steps if each.get("name") == step]
    return found

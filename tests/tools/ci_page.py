"""docs/ci.md as data: its commands as a shell would run them, and the workflows that they are for."""

import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in sorted((GITHUB / "workflows").glob("*.yml"))}
PAGE = (ROOT / "docs" / "ci.md").read_text()
REPOSITORY_ID = "987654321"


def page_commands():
    """Return the gcloud commands of the page as a shell would run them: variables set, loops unrolled."""
    script = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[1:])
    shell = 'gcloud() { for word in "$@"; do printf \'%s\\n\' "$word"; done; echo END; }\n'
    done = subprocess.run(["sh", "-eu", "-c", shell + script], capture_output=True, text=True, check=True, timeout=20)
    return [block.splitlines() for block in done.stdout.split("END\n") if block]


def account_roles(account):
    """Return the roles on the project that the page grants to an account of the workflows."""
    return {
        word.removeprefix("--role=")
        for command in page_commands()
        if command[:2] == ["projects", "add-iam-policy-binding"] and any(f":{account}@" in word for word in command)
        for word in command
        if word.startswith("--role=")
    }

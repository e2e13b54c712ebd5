"""dev/docs/releasing.md as an owner follows it: each block of commands, in a new clone, with GitHub and PyPI on this machine."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
FLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
JOBS = FLOW["jobs"]
PROJECTS = JOBS["pypi"]["strategy"]["matrix"]["project"]
PAGE = (ROOT / "dev" / "docs" / "releasing.md").read_text()
REPOSITORY = "acme/gemma-serving"
UNTIL_TAG, AFTER = (
    re.findall(r"```sh\n(.*?)```", part, re.DOTALL) for part in PAGE.split("## Check what was published")
)
GH = """#!{python}
import json, os, pathlib, shutil, subprocess, sys
words, github = sys.argv[1:], pathlib.Path(os.environ["GITHUB_FOLDER"])
body = json.load(sys.stdin) if "--input" in words else None
with (github / "calls").open("a") as calls:
    print(json.dumps([words, body]), file=calls)
match words:
    case ["api", "user", "--jq", ".id"]:
        print(4242)
    case ["repo", "create", name, "--public"]:
        subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", github / f"{{name}}.git"], check=True)
    case ["pr", "merge", branch, "--merge"]:
        subprocess.run(["git", "update-ref", "refs/heads/main", branch], cwd=github / "{repository}.git", check=True)
    case ["release", "create", tag, "--verify-tag", "--title", _, "--notes-file", notes, *files]:
        (github / tag).mkdir()
        for file in [notes, *files]:
            shutil.copy(file, github / tag)
        (github / tag / "notes.md").unlink()
    case ["release", "download", tag, "--repo", "{repository}", "--dir", folder]:
        shutil.copytree(github / tag, folder)
    case ["api", "--method", *_] | ["variable", "set", *_] | ["pr", "create", "--fill"] | ["attestation", "verify", *_]:
        pass
    case _:
        sys.exit(f"gh: {{words}} is not on the page")
"""
"""Notes each call with the document on its standard input, and keeps repositories and releases in a folder."""


@pytest.fixture
def github(tmp_path):
    """A folder that stands for GitHub, and beside it the command `gh`."""
    (tmp_path / "github").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gh").write_text(GH.format(python=sys.executable, repository=REPOSITORY))
    (tmp_path / "bin" / "gh").chmod(0o755)
    return tmp_path / "github"


def run(github, blocks, cwd, **variables):
    """Run blocks of the page in one shell and return what they print. git's addresses of GitHub lead to the folder."""
    names = {f"GIT_{who}_{what}": "owner@acme.example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PYTEST", "PYTHON"))},
        **names,
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{github}/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/",
        "GITHUB_FOLDER": str(github),
        "PATH": f"{github.parent / 'bin'}{os.pathsep}{os.environ['PATH']}",
        **variables,
    }
    script = "\n".join(blocks).replace("OWNER/gemma-serving", REPOSITORY)
    command = ["bash", "-euo", "pipefail", "-x", "-c", script]
    done = subprocess.run(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def calls(github):
    return [json.loads(line) for line in (github / "calls").read_text().splitlines()]


def test_the_page_has_every_job_and_makes_the_environments_and_variables_of_the_workflow(github, tmp_path):
    used = set(re.findall(r"vars\.(\w+)", str(FLOW)))
    for name in {*JOBS, *used, *PROJECTS}:
        assert f"`{name}`" in PAGE, name
    run(github, [UNTIL_TAG[0], *(block for block in UNTIL_TAG if "gh api" in block)], tmp_path)
    made, policies, rules, variables = {}, set(), [], set()
    for words, body in calls(github):
        match words:
            case ["api", "--method", "PUT", path, *_]:
                made[path.removeprefix(f"repos/{REPOSITORY}/environments/")] = body
            case ["api", "--method", "POST", path, "--raw-field", "name=v*", "--raw-field", "type=tag"]:
                policies.add(path.split("/")[-2])
            case ["api", "--method", "POST", path, *_]:
                assert path == f"repos/{REPOSITORY}/rulesets"
                rules.append(body)
            case ["variable", "set", name, "--repo", repository, "--body", "true"]:
                assert repository == REPOSITORY
                variables.add(name)
    assert set(made) == policies == {JOBS["github"]["environment"], *PROJECTS}
    approved = {
        "reviewers": [{"type": "User", "id": 4242}],
        "deployment_branch_policy": {"protected_branches": False, "custom_branch_policies": True},
    }
    assert all(body == approved for body in made.values())
    assert variables == used
    (tags,) = rules
    assert (tags["target"], tags["conditions"]["ref_name"]["include"]) == ("tag", ["refs/tags/v*"])
    assert {rule["type"] for rule in tags["rules"]} == {"update", "deletion"}
    assert "bypass_actors" not in tags


@pytest.mark.engine
@pytest.mark.long
@pytest.mark.timeout(5400)
def test_an_owner_follows_the_page_from_a_clone_to_an_installation_from_the_index(github, tmp_path):
    subprocess.run(["git", "clone", "--quiet", ROOT, tmp_path / "clone"], check=True)
    shown = run(github, UNTIL_TAG, tmp_path / "clone")
    assert re.search(r"^walk: the wheels of \S+ work, \d+ s\.$", shown, re.MULTILINE)
    tag = workflow(github, tmp_path)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=tmp_path / "index")
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    index = f"http://127.0.0.1:{server.server_port}/simple/"
    shown = run(github, [UNTIL_TAG[0], *AFTER], tmp_path / "release", PIP_EXTRA_INDEX_URL=index)
    server.shutdown()
    server.server_close()
    assert f"gemma_serving-{tag.removeprefix('v')}-py3-none-any.whl: OK" in shown
    assert "docs/folder.md" in shown


def workflow(github, tmp_path):
    """Run the steps of release.yml that check and publish, with the pushed tag and the clone's artefacts. Returns the tag.

    The index that stands for PyPI gets the files of each project.
    """
    clone = tmp_path / "release"
    listed = ["git", "-C", github / f"{REPOSITORY}.git", "tag", "--list"]
    tag = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / "notes").mkdir()
    python = clone / ".venv" / "bin" / "python"
    noted = subprocess.run(
        [python, "-m", "dev.authors.release", "notes"], cwd=clone, stdout=subprocess.PIPE, check=True
    )
    (tmp_path / "notes" / "notes.md").write_bytes(noted.stdout)
    shutil.copytree(clone / "dist", tmp_path / "dist")

    def step(job, **variables):
        (found,) = [step for step in JOBS[job]["steps"] if "run" in step]
        run(github, [found["run"]], tmp_path, REPOSITORY=REPOSITORY, TAG=tag, **variables)

    step("check")
    step("github")
    for project in PROJECTS:
        step("pypi", PROJECT=project)
        shutil.move(tmp_path / "python", tmp_path / "index" / "simple" / project)
    return tag

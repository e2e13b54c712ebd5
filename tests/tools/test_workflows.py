"""The workflows run scripts that exist, with no more rights than they need, and the pages about CI set up what they use.

`make check` runs zizmor, which finds actions without a commit, texts of events in commands and pull_request_target.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest
import yaml

from gemma_serving.planning.settings.tpu import CapacityApiName, SshAccess
from gemma_serving.scripts.doctor import permissions
from gemma_serving.scripts.init import __main__ as init
from gemma_serving.scripts.preview.comment import MARKER
from gemma_serving.stacks.tpu import PROJECT_ROLES, tunnel_roles
from localcloud.tests.server import gcloud_commands
from localcloud.world.conditions import MODIFIED_ROLES
from localcloud.world.roles import grants
from tests.tools.ci_page import (
    GITHUB,
    PAGE,
    ROOT,
    WORKFLOWS,
    account_grants,
    account_roles,
    bucket_roles,
    page_calls,
    page_commands,
    page_files,
    page_variables,
    step_script,
)

ACTIONS = {path.parent.name: yaml.safe_load(path.read_text()) for path in (GITHUB / "actions").glob("*/action.yml")}
PARSED = Path(__file__).parents[1] / "fixtures" / "gcloud" / "ci.txt"
WRITES = {"deploy.yml": "deploy", "teardown.yml": "teardown-by-hand"}
RELEASE = "release.yml"
"""Its page is dev/docs/releasing.md; tests/authors/release/test_workflow.py compares them."""
PROGRAM = re.compile(r"(^|[/(])(gemma|pulumi)$|^(scripts|authors|judges|tools|localcloud|gemma_serving)(\.|$)")
"""A word that names a program or module of the product."""
OWN_OPTION = re.compile(r"\$\{\w+:\+--[\w-]+=")
"""The start of an option that is passed only with a value, in one word."""
UPSTREAM = ("nightly.yml", RELEASE)
"""Workflows that a copy of this repository does not run; dev/docs/releasing.md sets their variables."""
GOOGLE = set(re.findall(r"vars\.(GCP_\w+)", str(WORKFLOWS)))
"""The repository variables about Google that any workflow reads."""


@pytest.mark.parametrize(("stack", "region"), [("tpu-v6e1", "us-east5"), ("l4-12b-qat", "us-east4")])
def test_a_deployment_logs_in_to_the_registry_of_its_first_region(tmp_path, stack, region):
    called = tmp_path / "gcloud"
    called.write_text('#!/bin/sh\necho "$@" >"$0.called"\n')
    called.chmod(0o755)
    command = ["bash", "-e", "-c", step_script("deploy.yml", "Log in to the registry")]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "STACK": stack}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    assert (tmp_path / "gcloud.called").read_text() == f"auth configure-docker {region}-docker.pkg.dev --quiet\n"


def triggers(workflow):
    found = workflow.get(True, workflow.get("on"))  # YAML 1.1 reads `on` as true
    return found if isinstance(found, dict) else dict.fromkeys([found] if isinstance(found, str) else found)


def jobs():
    return [(name, key, flow, job) for name, flow in WORKFLOWS.items() for key, job in flow["jobs"].items()]


def steps():
    found = [(f"{name}/{key}", step) for name, key, _, job in jobs() for step in job.get("steps", ())]
    return found + [(name, step) for name, action in ACTIONS.items() for step in action["runs"]["steps"]]


def rights(workflow, job):
    return job.get("permissions", workflow["permissions"])


def test_every_workflow_begins_with_the_right_to_read_and_every_job_ends():
    for name, flow in WORKFLOWS.items():
        allowed = flow["permissions"]
        assert allowed == {"contents": "read"}, name
    for name, key, flow, job in jobs():
        assert "timeout-minutes" in job or "uses" in job, (name, key)
        written = {right for right, level in rights(flow, job).items() if level == "write"}
        publishes = {"attestations", "contents"} if name == RELEASE else set()
        assert written <= {"id-token", "pull-requests", "issues"} | publishes, (name, key)


@pytest.mark.parametrize(("name", "environment"), WRITES.items())
def test_what_writes_to_the_cloud_runs_in_an_environment_and_one_at_a_time(name, environment):
    flow = WORKFLOWS[name]
    writing = [job for key, job in flow["jobs"].items() if "id-token" in rights(flow, job) and key != "preview"]
    assert [job["environment"] for job in writing] == [environment]
    assert flow["concurrency"]["group"] == "stack-${{ inputs.stack }}"
    assert flow["concurrency"]["cancel-in-progress"] is False


def test_each_job_gets_the_account_of_its_kind():
    found = {
        name: step["with"]["service_account"]
        for name, step in steps()
        if str(step.get("uses", "")).startswith("google-github-actions/auth@")
    }
    assert {name: re.search(r"GCP_(\w+)_SERVICE", account)[1] for name, account in found.items()} == {
        "deploy.yml/deploy": "DEPLOY",
        "deploy.yml/preview": "PLAN",
        "drift.yml/drift": "PLAN",
        "guard.yml/guard": "GUARD",
        "preview.yml/preview": "PREVIEW",
        "teardown.yml/teardown": "TEARDOWN",
    }


@pytest.mark.parametrize("kind", ["guard", "drift"])
def test_what_watches_the_cloud_is_skipped_without_any_google_variable_and_fails_with_some_of_them(kind):
    jobs_of = WORKFLOWS[f"{kind}.yml"]["jobs"]
    assert {name: job.get("needs") for name, job in jobs_of.items()} == {
        "variables": None,
        "set-up": "variables",
        kind: "set-up",
    }
    assert [name for name, job in jobs_of.items() if "if" in job] == ["variables"], "a skipped job is green"
    assert sorted(jobs_of["variables"]["if"].split(" || ")) == sorted(f"vars.{name} != ''" for name in GOOGLE)
    (refuses,) = jobs_of["variables"]["steps"]
    named = set(re.findall(r"vars\.(GCP_\w+)", str(jobs_of[kind])))
    assert sorted(refuses["if"].split(" || ")) == sorted(f"vars.{name} == ''" for name in named)
    assert f"GCP_{'GUARD' if kind == 'guard' else 'PLAN'}_SERVICE_ACCOUNT" in named
    shown = subprocess.run(["bash", "-c", refuses["run"]], capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stdout.count("::error")) == (1, 1)
    assert all(name in shown.stdout for name in named)


def test_a_copy_of_the_repository_uses_no_minutes_for_the_work_of_its_maintainers():
    """A job that needs a skipped one is skipped too, unless its condition says otherwise."""
    for name in UPSTREAM:
        for key, job in WORKFLOWS[name]["jobs"].items():
            if "needs" not in job:
                assert job.get("if") == "vars.UPSTREAM == 'true'", (name, key)
            assert not re.search(r"\b(always|failure|cancelled)\(", str(job.get("if"))), (name, key)
    everyone = set(WORKFLOWS) - set(UPSTREAM)
    assert [name for name in sorted(everyone) if "UPSTREAM" in str(WORKFLOWS[name])] == []


def test_kills_are_a_hundred_a_night_and_a_thousand_on_one_night_of_the_week():
    nightly = WORKFLOWS["nightly.yml"]
    kills, crons = nightly["jobs"]["kills"], [each["cron"] for each in triggers(nightly)["schedule"]]
    (step,) = [step for step in kills["steps"] if step.get("name") == "Kill"]
    weekly, most, few = re.fullmatch(
        r"\$\{\{ github\.event\.schedule == '(.+)' && (\d+) \|\| (\d+) \}\}", step["env"]["COUNT"]
    ).groups()
    days = {cron: cron.split()[4] for cron in crons}
    assert (days.pop(weekly), list(days.values())) == ("0", ["1-6"]), "each night has one run"
    series = len(kills["strategy"]["matrix"]["series"])
    assert (series * int(few), series * int(most)) == (100, 1000)
    assert 'COUNT="$COUNT"' in step["run"]
    assert int(most) / 3 < kills["timeout-minutes"] / 2, "three kills take a minute (Makefile)"


def test_who_approves_a_deployment_reads_that_no_guard_is_set():
    steps_of = WORKFLOWS["deploy.yml"]["jobs"]["preview"]["steps"]
    (warns,) = [step for step in steps_of if step.get("name") == "Warn without a guard"]
    assert warns["if"] == "vars.GCP_GUARD_SERVICE_ACCOUNT == ''"
    shown = subprocess.run(["bash", "-c", warns["run"]], capture_output=True, text=True, check=True).stdout
    assert shown.startswith("::warning title=No limit is enforced::")
    words = ("maxAge", "maxUsd", "tpu.idleAfter", "GCP_GUARD_SERVICE_ACCOUNT", ".github/setup/repository.sh")
    assert [word for word in words if word not in shown] == []


def test_a_deployment_waits_for_an_approval_and_is_checked():
    jobs_of = WORKFLOWS["deploy.yml"]["jobs"]
    preview, deploy = jobs_of["preview"], jobs_of["deploy"]
    assert (preview["environment"], deploy["environment"], deploy["needs"]) == ("plan", "deploy", "preview")
    assert step_script("deploy.yml", "Deploy") == 'exec .venv/bin/gemma up --stack="$STACK" --yes\n'
    assert step_script("deploy.yml", "Smoke") == 'exec .venv/bin/gemma smoke --stack="$STACK"'
    assert [step["name"] for step in deploy["steps"][-3:-1]] == ["Deploy", "Smoke"]
    last = deploy["steps"][-1]
    assert (last["if"], "gemma teardown $STACK" in last["run"]) == ("failure()", True)


def test_a_deployment_takes_one_commit_of_the_main_branch_only():
    """A run of another branch has no job; a fork's run has neither the variables nor the environments."""
    flow = WORKFLOWS["deploy.yml"]
    assert set(triggers(flow)) == {"workflow_dispatch"}
    assert {job["if"] for job in flow["jobs"].values()} == {"github.ref == 'refs/heads/main'"}
    checkouts = [
        step["with"]["ref"]
        for key in ("preview", "deploy")
        for step in flow["jobs"][key]["steps"]
        if "actions/checkout@" in step.get("uses", "")
    ]
    assert checkouts == ["${{ github.sha }}"] * 2


def test_a_deployment_stores_no_artifact():
    text = (GITHUB / "workflows" / "deploy.yml").read_text()
    words = ("upload-artifact@", "stack export", "stack output", "show-secrets", "checkpoint")
    assert [word for word in words if word in text] == []


PULUMI = r"""#!/bin/sh
case "$*" in
    "stack ls"*) test -z "$BROKEN" && echo '[{"name": "organization/gemma-serving/a"}, {"name": "b"}, {"name": "of-a-person"}]' ;;
    *"--stack=$DIFFERS") echo "error: no changes were expected for refresh but changes were proposed"; exit 255 ;;
    *"--stack=$UNREADABLE") echo "error: no access"; exit 255 ;;
    "refresh --preview-only --expect-no-changes --non-interactive --stack="*) echo ok ;;
    *) exit 1 ;;
esac
"""
GH = r"""#!/bin/sh
if [ "$2" = list ]; then
    while [ "$1" != --jq ]; do shift; done
    printf "%s" "$OPEN" | jq "$2"
else for word in "$@"; do printf '%s\n' "$word"; done >>calls; fi
"""

MARKED = "<!-- gemma-serving: drift -->\n"
ISSUES = json.dumps(
    [
        {"number": 9, "body": f"{MARKED}of a stranger", "author": {"login": "stranger", "is_bot": False}},
        {"number": 8, "body": "of another workflow", "author": {"login": "app/github-actions", "is_bot": True}},
        {"number": 7, "body": f"{MARKED}ours", "author": {"login": "app/github-actions", "is_bot": True}},
    ]
)
"""Open issues as `gh issue list --json` prints them, the newest first."""


@pytest.mark.skipif(shutil.which("jq") is None, reason="gh filters with jq's language")
def test_drift_keeps_one_issue_and_never_takes_what_could_not_be_read_for_none(tmp_path):
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name, text in {".venv/bin/pulumi": PULUMI, "gh": GH}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    for stack in ("a", "b", "never-deployed"):
        (tmp_path / f"Pulumi.{stack}.yaml").write_text("config: {}\n")

    def run(**given):
        (tmp_path / "calls").write_text("")
        names = {"DIFFERS": "-", "UNREADABLE": "-", "OPEN": "[]", "BROKEN": ""}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step_script("drift.yml", "Check")],
            cwd=tmp_path,
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "RUN_URL": "https://run", **names, **given},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert "of-a-person" not in done.stdout
        return done.returncode, (tmp_path / "calls").read_text()

    assert run() == (0, "")
    assert run(OPEN=ISSUES)[1].startswith("issue\nclose\n7\n")
    code, created = run(DIFFERS="a", UNREADABLE="b")
    assert (code, created.startswith("issue\ncreate\n--title\nDrift in deployed stacks\n--body\n<!--")) == (0, True)
    assert "- `a` differs from its last deployment.\n- `b` could not be compared.\n" in created
    assert "(https://run)" in created
    assert run(UNREADABLE="a", OPEN=ISSUES)[1].startswith("issue\nedit\n7\n--body\n<!-- gemma-serving: drift -->\n")
    assert run(BROKEN="1", OPEN=ISSUES) == (1, ""), "an issue stays open while the stacks cannot be listed"


COMMENTS = json.dumps(
    [
        {"id": 5, "body": f"{MARKER}\nof a stranger", "user": {"login": "stranger"}},
        {"id": 6, "body": f"{MARKER}\nof nobody", "user": None},
        {"id": 7, "body": "of another workflow", "user": {"login": "github-actions[bot]"}},
        {"id": 8, "body": f"{MARKER}\nours", "user": {"login": "github-actions[bot]"}},
        {"id": 9, "body": f"{MARKER}\nours too", "user": {"login": "github-actions[bot]"}},
    ]
)
"""A page of comments as GitHub's API lists them, the oldest first."""


@pytest.mark.skipif(shutil.which("jq") is None, reason="gh filters with jq's language")
@pytest.mark.parametrize(
    ("comments", "call"),
    [
        ("[]", "issues/12/comments"),
        (json.dumps(json.loads(COMMENTS)[:3]), "issues/12/comments"),
        (COMMENTS, "--method PATCH repos/o/r/issues/comments/8"),
    ],
    ids=["first", "others", "again"],
)
def test_a_pull_request_has_one_comment_and_those_of_others_are_left_alone(tmp_path, comments, call):
    """The author of a comment can change it after the workflow."""
    (tmp_path / "gh").write_text(GH.replace('[ "$2" = list ]', '[ "$2" = --paginate ]'))
    (tmp_path / "gh").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OPEN": comments}
    subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step_script("preview.yml", "Comment")],
        cwd=tmp_path,
        env={**environment, "GITHUB_REPOSITORY": "o/r", "PULL_REQUEST": "12"},
        check=True,
        timeout=60,
    )
    made = (tmp_path / "calls").read_text().replace("\n", " ")
    assert made.startswith("api --silent ")
    assert made.endswith(f"{call} --field body=@previews/comment.md ")


def advisory(name, *versions, aliases=(), published="2026-10-20"):
    package = {"package": {"name": "vllm", "ecosystem": "PyPI"}, "versions": list(versions)}
    return {"id": name, "aliases": list(aliases), "published": f"{published}T00:00:00Z", "affected": [package]}


@pytest.mark.skipif(shutil.which("jq") is None, reason="the workflow filters with jq")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            advisory("PYSEC-1", "0.27.0", "0.28.0"),
            "new: PYSEC-1",
        ),  # published before the newest one of the file was entered
        (advisory("PYSEC-1", "0.30.0", published="2024-01-01"), "new: PYSEC-1"),
        (advisory("PYSEC-1"), "new: PYSEC-1"),  # without its versions
        (advisory("PYSEC-1", "0.29.1rc1"), "new: PYSEC-1"),  # an image is built from 0.29.1rc1.dev468
        (advisory("PYSEC-1", "0.30.1"), "new: PYSEC-1"),  # a release that nobody measured
        ({**advisory("PYSEC-1", "0.30.0"), "withdrawn": "2026-10-21T00:00:00Z"}, "no new advisory"),
        (advisory("PYSEC-1", "0.6.0", "0.27.1", published="2026-12-01"), "no new advisory"),
        (advisory("PYSEC-1", "0.28.0", aliases=["GHSA-58v5-2m8f-94pr"]), "no new advisory"),
    ],
)
def test_a_vulnerability_that_the_file_does_not_have_fails_the_night(tmp_path, given, said):
    (tmp_path / "osv").write_text(json.dumps({"vulns": [given]}))
    (tmp_path / "curl").write_text(f"#!/bin/sh\ncp {tmp_path}/osv osv.json\n")
    (tmp_path / "curl").chmod(0o755)
    (tmp_path / "gemma_serving").symlink_to(ROOT / "gemma_serving")
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", step_script("nightly.yml", "Find new advisories of vLLM")],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert said in done.stdout + done.stderr
    assert (done.returncode != 0) is said.startswith("new")


def test_no_checkout_keeps_its_token():
    checkouts = [step for _, step in steps() if str(step.get("uses", "")).startswith("actions/checkout@")]
    assert len(checkouts) >= 8
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_every_step_runs_a_command_that_exists():
    makefile = (ROOT / "Makefile").read_text()
    for name, step in steps():
        command = step.get("run", "")
        for script in re.findall(r"scripts/\S+\.sh", command):
            assert os.access(ROOT / script, os.X_OK), (name, script)
            subprocess.run(["sh", "-n", script], cwd=ROOT, check=True, timeout=20)
        for module in re.findall(r"-m (scripts\.[\w.]+|tools\.\w+|authors\.\w+)", command):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), (name, module)
        for target in re.findall(r"\bmake ([a-z][\w-]*)", command):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), (name, target)


def product_words(script):
    """Yield the words after each program of the product in a shell script, up to the end of its command."""
    found = shlex.shlex(script.replace("\\\n", " "), posix=True, punctuation_chars="();<>|&\n")
    found.whitespace, found.whitespace_split = " \t\r", True
    command: list[str] = []
    for word in [*found, "\n"]:
        if word.strip("();|&\n"):
            command.append(word)
            continue
        at = next((at for at, one in enumerate(command) if PROGRAM.search(one)), None)
        if at is not None:
            yield command[at + 1 :]
        command = []


def read_as_options(script):
    """Return the words of the product's commands that an input can turn into an option."""
    pairs = [pair for command in product_words(script) for pair in pairwise(["", *command])]
    words = [word for before, word in pairs if not before.startswith((">", "<"))]
    return [word for word in words if word.startswith("$") and word != "$@" and not OWN_OPTION.match(word)]


def test_no_script_passes_an_input_as_a_word_that_may_be_an_option():
    """`--stack="$STACK"` is one word. `"$STACK"` and `--stack "$STACK"` are an option when the name is `--all`."""
    listed = subprocess.run(["git", "ls-files", "*.sh"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    scripts = [(name, (ROOT / name).read_text()) for name in listed.split()]
    scripts += [(name, step["run"]) for name, step in steps() if "run" in step]
    assert sum(1 for _, script in scripts for _ in product_words(script)) > 20
    assert [(name, found) for name, script in scripts if (found := read_as_options(script))] == []
    for planted in (
        'gemma teardown "$STACK"',
        'x=$(.venv/bin/pulumi up -s "$A")',
        "python -m scripts.plan \\\n --stack $S",
    ):
        assert read_as_options(planted), planted


def test_a_teardown_by_hand_runs_for_a_stack_name_given_twice_and_for_nothing_else(tmp_path):
    script, gemma = tmp_path / "scripts" / "teardown" / "ci_teardown.sh", tmp_path / ".venv" / "bin" / "gemma"
    for path, text in (
        (script, (ROOT / "scripts" / "teardown" / "ci_teardown.sh").read_text()),
        (gemma, '#!/bin/sh\necho "$@"\n'),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(text)
        path.chmod(0o755)

    def run(**environment):
        words, environment = ["sh", str(script), "out/x"], {"PATH": os.environ["PATH"], **environment}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout, "nothing was deleted" in done.stderr

    assert run(STACK="l4-qat", CONFIRM="l4-qat") == (0, "teardown --stack=l4-qat --yes --receipt=out/x\n", False)
    hostile = ("--all", "-x", "--over-limit", "../x", "a;id", "", "\n", "a\n--all", "a b", "$(id)", "A", "1")
    given = [(name, name) for name in hostile] + [("a", "b"), ("a", ""), ("", "a")]
    assert {(2, "", True)} == {run(STACK=stack, CONFIRM=confirm) for stack, confirm in given} | {run()}
    assert set(triggers(WORKFLOWS["teardown.yml"])) == {"workflow_dispatch"}


def test_a_pool_and_a_provider_that_google_keeps_as_deleted_are_undeleted(tmp_path):
    gcloud, made = tmp_path / "gcloud", tmp_path / "made"
    gcloud.write_text(f'#!/bin/sh\necho "$*" >> {made}\ncase $* in *workload-identity-pools*create*) exit 1 ;; esac\n')
    gcloud.chmod(0o755)
    given = {
        "PROJECT": "p",
        "NUMBER": "1",
        "REPOSITORY_ID": "2",
        "STATE": "s",
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    script = ["sh", str(GITHUB / "setup" / "accounts.sh")]
    subprocess.run(script, env=given, capture_output=True, check=True, timeout=60)
    lines = made.read_text().splitlines()
    undeleted = [line for line in lines if " undelete " in line]
    place = "--project=p --location=global"
    assert undeleted == [
        f"iam workload-identity-pools undelete github {place}",
        f"iam workload-identity-pools providers undelete actions {place} --workload-identity-pool=github",
    ]
    assert [lines[lines.index(line) - 1].split(" --")[0] for line in undeleted] == [
        "iam workload-identity-pools create github",
        "iam workload-identity-pools providers create-oidc actions",
    ]


def test_the_page_sets_each_variable_that_the_workflows_read_to_the_value_of_its_table():
    calls, found = [words for words, _ in page_calls() if words[:2] == ["variable", "set"]], page_variables()
    text = "".join(path.read_text() for path in (GITHUB / "workflows").glob("*.yml") if path.name not in UPSTREAM)
    assert len(calls) == len(found) == 8
    assert set(found) == set(re.findall(r"\bvars\.(\w+)", text))
    assert all(words[3:5] == ["--repo", "my-org/gemma-serving"] for words in calls)
    table = dict(re.findall(r"^\| `([A-Z_]+)` \| `([^`]+)`", PAGE, re.MULTILINE)) | {"GCP_PROJECT": "PROJECT"}
    for word, value in {"PROJECT": "my-project", "NUMBER": "123456789012", "STATE": "my-pulumi-state"}.items():
        table = {name: re.sub(rf"\b{word}\b", value, text) for name, text in table.items()}
    assert found == table
    created = {command[3] for command in page_commands() if command[:3] == ["iam", "service-accounts", "create"]}
    assert {value.partition("@")[0] for name, value in found.items() if name.endswith("_ACCOUNT")} == created


def test_the_parser_of_gcloud_knows_every_command_of_the_page(tmp_path):
    commands, gcloud = page_commands(), gcloud_commands.installed()
    assert len(commands) > 40
    recorded = PARSED.read_text().split("END\n")[:-1]
    if gcloud is not None:
        outcomes = gcloud_commands.run(gcloud, "http://127.0.0.1:9", tmp_path, commands, token=None)
        refused = zip(commands, outcomes, strict=True)
        assert [pair for pair in refused if gcloud_commands.refused_by_parser(pair[1])] == []
        if os.environ.get("UPDATE_GOLDEN"):
            PARSED.write_text("".join("\n".join(command) + "\nEND\n" for command in commands))
            recorded = PARSED.read_text().split("END\n")[:-1]
    assert [block.splitlines() for block in recorded] == commands, "UPDATE_GOLDEN=1, where gcloud is installed"


def test_the_account_that_deploys_has_the_roles_that_the_doctor_asks_for_and_those_of_the_tunnel():
    """An existing bucket needs the right to read alone; the stack's own bucket needs more, which holds it.

    The right over instances is for stacks on Compute Engine alone; docs/ci.md names it beside the list.
    """
    instances = "roles/compute.instanceAdmin.v1"
    assert instances in PAGE
    groups = [value for name, value in vars(permissions).items() if isinstance(value, permissions.RolePermissions)]
    needed = {group.role for group in (*groups, *permissions.COMMON)}
    assert account_roles("ci-deploy") == (needed | {*tunnel_roles("cloud-tpu", "os-login")}) - {
        "roles/storage.objectViewer",
        instances,
    } | {"projects/my-project/roles/gemmaCreator"}


READS_PREVIEW = {
    "roles/serviceusage.serviceUsageConsumer",
    "roles/browser",
    "roles/tpu.viewer",
    "roles/run.viewer",
    "roles/compute.viewer",
}
READS_ALL = READS_PREVIEW | {
    "roles/iam.securityReviewer",
    "roles/iam.serviceAccountViewer",
    "roles/artifactregistry.reader",
    "roles/secretmanager.viewer",
    "roles/storage.bucketViewer",
    "roles/monitoring.viewer",
}
STATE = "gs://my-pulumi-state"


def test_the_accounts_that_read_have_no_basic_role_and_no_objects_but_those_of_named_buckets():
    assert (account_roles("ci-preview"), account_roles("ci-plan")) == (READS_PREVIEW, READS_ALL)
    named = {STATE, "gs://my-project-gemma-l4-qat-models"}
    for account in ("ci-preview", "ci-plan"):
        assert bucket_roles(account) == {bucket: {"roles/storage.objectViewer"} for bucket in named}
    contents = {"storage.objects.get", "secretmanager.versions.access", "cloudkms.cryptoKeyVersions.useToDecrypt"}
    assert contents & held("ci-plan", contents) == set()
    lists = contents | {"storage.objects.list", "logging.logEntries.list", "secretmanager.secrets.list"}
    assert held("ci-preview", lists) == set()


def held(account, permissions_asked):
    """Return those of the permissions that an account's roles on the project have."""
    return {name for name in permissions_asked if any(grants(role, name) for role in account_roles(account))}


def test_the_account_that_deletes_cannot_act_as_a_server():
    deploys, deletes = account_roles("ci-deploy"), account_roles("ci-teardown")
    assert deletes < deploys
    assert "roles/serviceusage.serviceUsageAdmin" not in deploys
    assert "roles/iam.serviceAccountUser" not in deletes


def granted_by_stacks():
    """The roles that a program grants on the project, whatever its settings."""
    tunnels = {
        role for api in get_args(CapacityApiName) for ssh in get_args(SshAccess) for role in tunnel_roles(api, ssh)
    }
    return {*PROJECT_ROLES, *tunnels}


def test_the_accounts_that_write_may_grant_the_roles_that_stacks_grant_and_no_others():
    """With a role less an `up` or a teardown is refused; with another one a job can give itself more."""
    admin, instances = "roles/resourcemanager.projectIamAdmin", "roles/compute.instanceAdmin.v1"
    (limit,) = {account_grants(account)[admin] for account in ("ci-deploy", "ci-teardown", "ci-guard")}
    listed = re.findall(r"'(roles/[\w.]+)'", limit)
    assert limit == f"api.getAttribute('{MODIFIED_ROLES}', []).hasOnly({listed})"
    assert set(listed) == granted_by_stacks() - {instances}
    assert len(listed) < 10, "Google takes ten, and the page names one to add"
    assert f"Add `'{instances}'` to the list only for" in PAGE
    # Google's warning: with a role that sets policies, a limited administrator can give itself everything.
    assert [role for role in listed if grants(role, "resourcemanager.projects.setIamPolicy")] == []
    for account in ("ci-deploy", "ci-teardown", "ci-guard", "ci-preview", "ci-plan"):
        held = account_grants(account).items()
        free = [
            role for role, condition in held if not condition and grants(role, "resourcemanager.projects.setIamPolicy")
        ]
        assert free == [], account


def test_every_grant_on_the_project_is_one_of_those_that_the_limit_names():
    """A new `projects.IAMMember` in the program has to appear in the test above."""
    found = {}
    for room in ("components", "stacks"):
        for path in (ROOT / room).rglob("*.py"):
            found[path.relative_to(ROOT).as_posix()] = len(
                re.findall(r"\bprojects\.IAM(?:Member|Binding|Policy)\(", path.read_text())
            )
    assert {name: count for name, count in found.items() if count} == {
        "components/runtime_identity.py": 1,
        "stacks/tpu.py": 1,
    }


def test_only_what_runs_reviewed_code_decrypts():
    key = ["kms", "keys", "add-iam-policy-binding"]
    members = {word for command in page_commands() if command[:3] == key for word in command if "--member=" in word}
    decrypting = {member.partition(":")[2].partition("@")[0] for member in members}
    assert decrypting == {"ci-plan", "ci-deploy", "ci-teardown"}
    (role,) = {word for command in page_commands() if command[:3] == key for word in command if "--role=" in word}
    assert role == "--role=roles/cloudkms.cryptoKeyDecrypter"


def test_a_secret_reaches_only_jobs_of_an_environment_and_a_pull_request_reads_none():
    """A secret of an environment that takes the main branch only, or asks for a review, is out of a pull request's reach."""
    for name, key, _, job in jobs():
        if "secrets." in str(job):
            assert "environment" in job, (name, key)
    preview = WORKFLOWS["preview.yml"]
    assert "secrets" not in str(preview)
    assert [job for job in preview["jobs"].values() if "environment" in job] == []
    script = (ROOT / "scripts" / "preview" / "ci_preview.sh").read_text()
    assert script.count("gemma preview run ") == script.count("gemma preview run --without-secrets ") == 2


def test_the_commands_of_the_page_make_the_environments_that_its_table_names():
    table = dict(re.findall(r"^\| `([\w-]+)` \| (required reviewers|none)", PAGE, re.MULTILINE))
    made, branches, secrets = {}, set(), set()
    for words, body in page_calls():
        found = re.search(r"/environments/([\w-]+)(/deployment-branch-policies)?(?: |$)", " ".join(words))
        if found and found[2]:
            assert words[-1] == "name=main"
            branches.add(found[1])
        elif found:
            made[found[1]] = body
        elif words[:2] == ["secret", "set"]:
            secrets.add(words[-1])
    assert set(made) == set(table) == secrets == branches
    for name, body in made.items():
        assert body["reviewers"] == ([{"type": "User", "id": 4242}] if table[name] != "none" else []), name
        assert body["deployment_branch_policy"] == {"protected_branches": False, "custom_branch_policies": True}, name
    used = {job["environment"] for name, *_, job in jobs() if "environment" in job and name != RELEASE}
    assert used == set(table)


def rules_of_main(people, *, is_clone=True):
    """Return the rule set that the page creates in a repository of so many people."""
    (rules,) = [
        body for words, body in page_calls(people, is_clone=is_clone) if words[3:4] and words[3].endswith("/rulesets")
    ]
    return rules


def may_merge(rules, *, is_admin, approvals):
    """Whether GitHub merges an own pull request. Nobody's approval of an own one counts; 5 is the role of an admin."""
    (review,) = [rule["parameters"] for rule in rules["rules"] if rule["type"] == "pull_request"]
    admins = [
        actor for actor in rules["bypass_actors"] if (actor["actor_type"], actor["actor_id"]) == ("RepositoryRole", 5)
    ]
    return bool(is_admin and admins) or approvals >= review["required_approving_review_count"]


def test_a_person_who_works_alone_can_merge_and_nobody_in_a_team_without_an_approval():
    alone, unread = rules_of_main(1), rules_of_main("")
    assert may_merge(alone, is_admin=True, approvals=0)
    assert not may_merge(alone, is_admin=False, approvals=0), "a guest's pull request still needs the owner"
    for team in (rules_of_main(2), rules_of_main(12), unread):
        assert team["bypass_actors"] == []
        assert not may_merge(team, is_admin=True, approvals=0)
        assert may_merge(team, is_admin=False, approvals=1)
        assert {**alone, "bypass_actors": []} == team, "the rules are the same"
    assert [actor["bypass_mode"] for actor in alone["bypass_actors"]] == ["pull_request"], "no push to the main branch"
    assert "`gh pr merge --admin`" in PAGE


def test_the_rules_of_the_main_branch_ask_for_the_checks_that_run_and_for_an_owner():
    rules = rules_of_main(2)
    by_type = {rule["type"]: rule.get("parameters", {}) for rule in rules["rules"]}
    jobs = WORKFLOWS["test.yml"]["jobs"]
    versions, packages = jobs["test"]["strategy"]["matrix"]["python"], jobs["packages"]["strategy"]["matrix"]["package"]
    contexts = [check["context"] for check in by_type["required_status_checks"]["required_status_checks"]]
    assert contexts == [
        *(f"test ({version})" for version in versions),
        *(f"packages ({package})" for package in packages),
    ]
    assert sorted(packages) == sorted(
        path.parent.name for path in Path(__file__).parents[2].glob("packages/*/pyproject.toml")
    )
    assert by_type["pull_request"]["require_code_owner_review"] is True
    assert by_type["pull_request"]["required_approving_review_count"] == 1
    assert rules["conditions"]["ref_name"]["include"] == ["~DEFAULT_BRANCH"]
    assert page_files() == {"CODEOWNERS": "* @my-org/ml-platform\n"}


def test_the_rules_of_a_folder_of_its_own_require_the_checks_of_a_pull_request_there():
    (checks,) = [rule for rule in rules_of_main(2, is_clone=False)["rules"] if rule["type"] == "required_status_checks"]
    same = [ROOT / ".github" / name for name in init._OF_REPOSITORY if name.startswith("workflows/")]
    own = init._GITHUB.glob("workflows/*.yml")
    flows = {path.name: yaml.safe_load(path.read_text()) for path in (*same, *own)}
    reported = set()
    for flow in flows.values():
        if "pull_request" in flow[True]:
            for name, job in flow["jobs"].items():
                called = flows[Path(job["uses"]).name]["jobs"] if "uses" in job else ()
                reported |= {f"{name} / {each}" for each in called} or {name}
    assert {check["context"] for check in checks["parameters"]["required_status_checks"]} == reported


def test_the_guard_has_the_roles_of_a_teardown_and_reads_the_use_of_services():
    own = {"roles/monitoring.viewer", "projects/my-project/roles/gemmaGuard"}
    assert account_roles("ci-guard") - account_roles("ci-teardown") == own
    assert account_roles("ci-teardown") - account_roles("ci-guard") == {"roles/iam.serviceAccountAdmin"}

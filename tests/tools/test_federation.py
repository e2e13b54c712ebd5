"""The federation that docs/ci.md sets up: each job uses its account, and no other job uses any."""

import base64
import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.answers import served
from tests.tools.ci_page import GITHUB, PAGE, REPOSITORY_ID, page_commands
from tests.tools.federation import Google, RefusedError, Repository

NEW = Repository(id=REPOSITORY_ID)
OLD = replace(NEW, immutable=False)
RENAMED = replace(NEW, name="another-name-" + "x" * 80)
FORK = replace(NEW, owner="stranger", owner_id="7", id="8")
SAME_NAME = replace(NEW, owner_id="7", id="8", immutable=False)
"""A repository that got the name when the first was deleted."""

BRANCH = "refs/heads/feature"
JOBS = {
    "preview.yml": ({"event": "pull_request", "ref": "refs/pull/1/merge"}, {"ci-preview"}),
    "drift.yml": ({"event": "schedule", "environment": "plan"}, {"ci-plan"}),
    "deploy.yml": ({"event": "workflow_dispatch", "environment": "deploy"}, {"ci-deploy"}),
    "preview of deploy.yml": ({"event": "workflow_dispatch", "environment": "plan"}, {"ci-plan"}),
    "preview of deploy.yml from a branch": (
        {"event": "workflow_dispatch", "ref": BRANCH, "environment": "plan"},
        set(),
    ),
    "teardown.yml": ({"event": "workflow_dispatch", "environment": "teardown-by-hand"}, {"ci-teardown"}),
    "guard.yml": ({"event": "schedule"}, {"ci-guard"}),
    "deploy from a branch": ({"event": "workflow_dispatch", "ref": BRANCH, "environment": "deploy"}, set()),
    "teardown from a branch": (
        {"event": "workflow_dispatch", "ref": BRANCH, "environment": "teardown-by-hand"},
        set(),
    ),
    "deploy in a pull request": ({"event": "pull_request", "ref": "refs/pull/1/merge", "environment": "deploy"}, set()),
    "a push to the main branch": ({"event": "push"}, set()),
    "pull_request_target, which runs on the main branch": ({"event": "pull_request_target"}, set()),
    "workflow_run, which runs on the main branch": ({"event": "workflow_run"}, set()),
    "issue_comment in an environment": ({"event": "issue_comment", "environment": "plan"}, set()),
    "a branch": ({"ref": BRANCH}, set()),
    "a tag": ({"ref": "refs/tags/v1"}, set()),
    "a branch with the words of an environment": ({"ref": "refs/heads/x:environment:deploy"}, set()),
    "another environment": ({"environment": "staging"}, set()),
    "an environment with the words of another": ({"environment": "x:environment:deploy"}, set()),
}


@pytest.fixture(scope="module")
def google():
    return Google.set_up(page_commands())


def wrong(google, repository, expected):
    """Return the jobs whose accounts differ from those that are expected."""
    found = {name: google.accounts(repository.claims(**job)) for name, (job, _) in JOBS.items()}
    return {name: accounts for name, accounts in found.items() if accounts != expected(JOBS[name][1])}


@pytest.mark.parametrize("repository", [NEW, OLD, RENAMED], ids=["new", "old", "renamed"])
def test_each_job_of_the_repository_uses_its_account_and_no_other(google, repository):
    assert wrong(google, repository, lambda accounts: accounts) == {}


@pytest.mark.parametrize("repository", [FORK, SAME_NAME], ids=["fork", "same name"])
def test_no_job_of_another_repository_uses_any_account(google, repository):
    assert wrong(google, repository, lambda _: set()) == {}


def test_a_pull_request_of_a_fork_has_no_token():
    with pytest.raises(RefusedError, match="ACTIONS_ID_TOKEN_REQUEST_URL"):
        NEW.claims(event="pull_request", ref="refs/pull/1/merge", head=FORK)


def test_the_textual_subject_works_in_old_repositories_only():
    """What this page said before: the stand-in refuses it for repositories made since 2026-07-15."""
    name = f"{OLD.owner}/{OLD.name}"
    textual = [f"'repo:{name}:{job}'" for job in ("pull_request",)]
    subjects = f"assertion.sub in [{', '.join(textual)}]"
    provider = {
        "--attribute-mapping": "google.subject=assertion.sub,attribute.repository=assertion.repository",
        "--attribute-condition": f"assertion.repository_id == '{OLD.id}' && (assertion.ref == 'refs/heads/main' || {subjects})",
    }

    def as_before(word):
        key = word.partition("=")[0]
        return f"{key}={provider[key]}" if key in provider else word.replace(f"repository:{OLD.id}:", f"repo:{name}:")

    google = Google.set_up([[as_before(word) for word in command] for command in page_commands()])
    others = {"push", "pull_request_target", "workflow_run", "issue_comment"}
    assert {JOBS[name][0]["event"] for name in wrong(google, OLD, lambda accounts: accounts)} == others
    assert set(wrong(google, NEW, lambda accounts: accounts)) == {
        name for name, (_, accounts) in JOBS.items() if accounts
    }
    with pytest.raises(RefusedError, match="127 bytes"):
        google.exchange(RENAMED.claims(environment="deploy"))


@pytest.mark.parametrize(
    ("part", "planted", "words"),
    [
        (
            "--attribute-mapping",
            "google.subject=assertion.repository_id + ':' + assertion.environment",
            "cannot be evaluated",
        ),
        ("--attribute-mapping", "google.subject=assertion.repository_id == '1'", "must be of type STRING"),
        ("--attribute-mapping", "attribute.repository=assertion.repository", "no google.subject"),
        ("--attribute-mapping", "google.subject=assertion.sub.replace('a', 'b')", "do not name: .'replace'"),
        ("--attribute-condition", "true", "must reference one of the provider's claims"),
        ("--attribute-condition", "assertion.repository_id == '1'", "rejected by the attribute condition"),
    ],
)
def test_the_stand_in_refuses_what_google_refuses(part, planted, words):
    commands = [
        [f"{part}={planted}" if word.startswith(f"{part}=") else word for word in command]
        for command in page_commands()
    ]
    with pytest.raises(RefusedError, match=words):
        Google.set_up(commands).exchange(NEW.claims())


def test_the_page_names_both_forms_of_the_subject():
    for repository in (NEW, OLD):
        form = repository.claims(environment="deploy")["sub"]
        for value, word in {
            "my-org": "OWNER",
            "1234567": "OWNER_ID",
            NEW.id: "NAME_ID",
            "gemma-serving": "NAME",
        }.items():
            form = re.sub(rf"(?<![\w-]){value}(?![\w-])", word, form)
        assert f"`{form}`" in PAGE, form


def test_the_step_of_the_page_prints_the_claims_and_not_the_token(tmp_path):
    claims = NEW.claims(environment="deploy")
    token = ".".join(
        base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (b"{}", json.dumps(claims).encode(), b"s")
    )

    def issuer(asked):
        assert asked.headers["Authorization"] == "Bearer of-the-job"
        assert asked.path == "/token?api=1&audience=claims"
        return 200, {"value": token}

    (script,) = re.findall(r"`run: python (\S+)`", PAGE)
    with served(issuer) as url:
        done = subprocess.run(
            [sys.executable, GITHUB.parent / script],
            env={
                "ACTIONS_ID_TOKEN_REQUEST_URL": f"{url}/token?api=1",
                "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "of-the-job",
                "NO_PROXY": "127.0.0.1",
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    assert json.loads(done.stdout) == claims
    assert token not in done.stdout

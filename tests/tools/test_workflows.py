"""The accounts of the workflows have the roles of their work, and what writes or reads a secret needs a reviewed commit or a person.

`make check` reads the workflows themselves, with zizmor and actionlint.
"""

import re
from pathlib import Path
from typing import get_args

import yaml

from gemma_serving.planning.settings.tpu import CapacityApiName, SshAccess
from gemma_serving.scripts.doctor import permissions
from gemma_serving.scripts.init import __main__ as init
from gemma_serving.stacks.tpu import PROJECT_ROLES, tunnel_roles
from localcloud.tests.server import gcloud_commands
from localcloud.world.conditions import MODIFIED_ROLES
from localcloud.world.roles import grants
from tests.golden import golden, if_meant
from tests.tools.ci_page import (
    PAGE,
    ROOT,
    WORKFLOWS,
    account_grants,
    account_roles,
    bucket_roles,
    page_calls,
    page_commands,
    page_files,
)
from tests.tracked import tracked

PARSED = Path(__file__).parents[1] / "fixtures" / "gcloud" / "ci.txt"
RELEASE = "release.yml"
"""Its page is dev/docs/releasing.md; tests/authors/release/test_workflow.py compares them."""


def jobs():
    return [(name, key, flow, job) for name, flow in WORKFLOWS.items() for key, job in flow["jobs"].items()]


def test_each_job_gets_the_account_of_its_kind():
    found = {
        f"{name}/{key}": step["with"]["service_account"]
        for name, key, _, job in jobs()
        for step in job.get("steps", ())
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


def test_the_parser_of_gcloud_knows_every_command_of_the_page(tmp_path):
    commands, gcloud = page_commands(), gcloud_commands.installed()
    assert len(commands) > 40
    text, recorded = "".join("\n".join(command) + "\nEND\n" for command in commands), PARSED.read_text()
    if gcloud is not None:
        outcomes = gcloud_commands.run(gcloud, "http://127.0.0.1:9", tmp_path, commands, token=None)
        refused = zip(commands, outcomes, strict=True)
        assert [pair for pair in refused if gcloud_commands.refused_by_parser(pair[1])] == []
        recorded = golden(PARSED, text)
    assert text == recorded, f"{if_meant()}; gcloud has to be installed"


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
    made = re.compile(r"\bprojects\.IAM(?:Member|Binding|Policy)\(")
    found = {
        path.relative_to(ROOT).as_posix(): len(made.findall(path.read_text()))
        for path in tracked("components", "stacks")
    }
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

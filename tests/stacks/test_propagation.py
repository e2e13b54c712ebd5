"""What is waited for while Google makes a change effective, and for how long."""

import asyncio
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pulumi
import pytest

from gcp_tpu_provider.refusals import read, rows
from gemma_serving.cloud.clock import SPEED_VARIABLE, WaitClock
from gemma_serving.cloud.enabled import require_apis
from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.cloud.google_session import RejectedLoginError
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.scripts.doctor.permissions import permissions_of
from gemma_serving.stacks.google_project import propagation
from gemma_serving.stacks.google_project.propagation import (
    awaited_change,
    image_advice,
    require_enabled,
    require_resource_manager,
)
from gemma_serving.stacks.loading import from_file
from loadtest.tests.virtual_time import VirtualLoop

DISABLED = (
    "Error creating Network: googleapi: Error 403: Compute Engine API has not been used in project 269 before or it is disabled. "
    "Enable it by visiting https://console.developers.google.com/apis/api/compute.googleapis.com/overview?project=269 then retry."
)

AGENT = "service-269@gcp-sa-artifactregistry.iam.gserviceaccount.com"


@pytest.mark.parametrize("words", [row["words"] for _, row in rows()])
def test_only_what_passes_by_itself_is_waited_for(words):
    found, named = awaited_change(f"Error applying IAM policy: googleapi: Error 400: {words}"), read(words).names
    assert (found and found[0]) == named.get("what")
    assert found is None or f"{found[0]} " in f"{words} "


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("googleapi: Error 409: The resource 'projects/p/x' already exists, alreadyExists", True),
        ("googleapi: Error 409: There were concurrent policy changes.", False),
        ("Error creating service account: googleapi: Error 500: Internal error encountered.", True),
        ("Error 400: Invalid value of 500", False),
        (DISABLED, False),
    ],
)
def test_what_exists_already_is_named_with_the_command_that_takes_it_over(monkeypatch, message, named):
    monkeypatch.setattr(pulumi, "get_stack", lambda: "dev")
    hint = propagation.exists_hint(message)
    assert (hint is not None) is named
    assert not named or "Run `gemma up dev`, which imports " in hint


POLICY = "gcp:monitoring/alertPolicy:AlertPolicy"
REFUSED = "googleapi: Error 403: Permission 'monitoring.alertPolicies.create' denied on resource"


@pytest.mark.parametrize(
    ("type_", "name", "message", "role"),
    [
        (POLICY, "alerts-idle", REFUSED, "roles/monitoring.editor and roles/logging.configWriter"),
        (
            "gcp:monitoring/dashboard:Dashboard",
            "alerts-dashboard",
            "Error 403: The caller does not have permission",
            "roles/monitoring.editor",
        ),
        (POLICY, "alerts-idle", "Error 400: invalid query", None),
        ("gcp:storage/bucket:Bucket", "models", REFUSED, None),
    ],
)
def test_a_denied_alert_names_the_role_and_the_setting_without_alerts(monkeypatch, type_, name, message, role):
    said = []
    monkeypatch.setattr(pulumi.log, "warn", said.append)
    monkeypatch.setattr(pulumi, "get_stack", lambda: "dev")
    waits = propagation._Waits("my-project")
    failed = pulumi.ErrorHookArgs("urn", "", name, type_, errors=[message])
    assert asyncio.new_event_loop().run_until_complete(waits.again(failed)) is False
    assert [role in text for text in said if "roles/" in text] == ([] if role is None else [True])
    without = [text for text in said if "config set --path gemma-serving:alerts.enabled false --stack dev" in text]
    assert len(without) == (role is not None)


def test_the_doctor_checks_the_roles_that_the_advice_names():
    path = Path(__file__).resolve().parents[2] / "Pulumi.tpu-v6e1.yaml"
    on = from_file(path, project="my-project")
    off = replace(on, alerts=replace(on.alerts, enabled=False))
    roles, fewer = ([group.role for group in permissions_of(settings)] for settings in (on, off))
    assert [role for role in roles if role not in fewer] == list(propagation.ALERT_ROLES)


NO_ROLE = "googleapi: Error 400: Role (projects/p-1/roles/gemmaTunnel) does not exist in the resource's hierarchy., badRequest"
DENIED = "Error 403: Permission 'iam.serviceaccounts.actAs' denied on service account a@p.iam.gserviceaccount.com (or it may not exist)."


@pytest.mark.parametrize(
    ("error", "limit_s", "said"),
    [
        (DISABLED, 300, "or missing)"),
        (NO_ROLE, 120, "or missing)"),
        (DENIED, 120, "or you lack iam.serviceaccounts.actAs on it"),
    ],
)
def test_a_resource_is_tried_again_at_googles_pace_and_not_for_ever(monkeypatch, error, limit_s, said):
    loop, spoken = VirtualLoop(), []
    monkeypatch.setattr(pulumi.log, "info", spoken.append)
    monkeypatch.setattr(pulumi.log, "warn", spoken.append)
    monkeypatch.setattr(pulumi, "get_stack", lambda: "x")
    monkeypatch.delenv(SPEED_VARIABLE, raising=False)
    waits = propagation._Waits("my-project")
    errors, attempts_s = [], []

    async def all_attempts():
        while True:
            errors.insert(0, error)
            attempts_s.append(loop.time())
            if not await waits.again(pulumi.ErrorHookArgs("urn", "", "n", "t", errors=errors)):
                return

    loop.run_until_complete(all_attempts())
    pauses = [round(after - before, 6) for before, after in pairwise(attempts_s)]
    assert limit_s <= sum(pauses) <= limit_s + 30
    assert pauses[:3] == [5, 10, 15]
    assert max(pauses) == 20
    assert [said in text for text in spoken] == [True, True]
    assert "gemma doctor x" in spoken[-1]


@pytest.mark.parametrize("text", ["fast", "0", "-1"])
def test_a_clock_speed_that_is_no_number_above_0_is_refused_before_anything_is_declared(monkeypatch, text):
    monkeypatch.setenv(SPEED_VARIABLE, text)
    with pytest.raises(CommandRefusedError, match="must be a number above 0"):
        propagation.wait_for_google(project="my-project")


OFF = GoogleListError(403, "Cloud Resource Manager API has not been used in project 269.", "SERVICE_DISABLED")


class Refusing:
    """A session with Google in which each read fails."""

    def __init__(self, error):
        self.error = error

    def get(self, *_):
        raise self.error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OFF, "the API cloudresourcemanager.googleapis.com is off or was just enabled"),
        (GoogleListError(403, "Permission 'resourcemanager.projects.get' denied."), "projects.get' denied. Run"),
        (GoogleListError(404, "Not found."), "no such project"),
        (ScriptError("It failed 4 times."), "It failed 4 times. Run"),
    ],
)
def test_a_refused_first_call_is_one_sentence_with_the_command(monkeypatch, error, words):
    now, spoken = [0.0], []

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(propagation, "connect", lambda _: Refusing(error))
    monkeypatch.setattr(pulumi.log, "info", spoken.append)
    monkeypatch.delenv(SPEED_VARIABLE, raising=False)
    with pytest.raises(CommandRefusedError, match=f"Cannot read project my-project: .*{words}") as caught:
        require_resource_manager("my-project", WaitClock(now_s=lambda: now[0], sleep=sleep))
    assert (spoken != [], now[0] > 0) == (error is OFF, error is OFF)
    assert now[0] <= 300 + 5
    assert "gemma doctor" in str(caught.value)


ENABLE = "gcloud services enable run.googleapis.com compute.googleapis.com --project=my-project"


def test_an_up_is_refused_with_one_line_for_all_missing_apis_and_a_preview_warns(monkeypatch):
    warned = []
    monkeypatch.setattr("gemma_serving.cloud.enabled.read_enabled_apis", lambda *_: frozenset({"iam"}))
    monkeypatch.setattr("gemma_serving.cloud.enabled.connect", lambda *_: None)
    monkeypatch.setattr(pulumi.log, "warn", warned.append)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
    with pytest.raises(CommandRefusedError, match=ENABLE):
        require_enabled("my-project", ["iam", "run", "compute"])
    assert warned == []
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: True)
    require_enabled("my-project", ["iam", "run", "compute"])
    assert [ENABLE in text for text in warned] == [True]


@pytest.mark.parametrize("error", [RejectedLoginError(), CommandRefusedError("No credentials.")])
def test_a_login_that_fails_is_said_once_by_its_own_error(monkeypatch, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr("gemma_serving.cloud.enabled.connect", refuse)
    with pytest.raises(CommandRefusedError, match=re.escape(str(error))):
        require_apis("my-project", ["run"], say=pytest.fail)


@pytest.mark.parametrize(
    "error",
    [
        GoogleListError(403, "The caller does not have permission."),
        GoogleListError(403, "Service Usage API has not been used in project 2.", "SERVICE_DISABLED"),
        ScriptError("It failed 4 times."),
    ],
)
def test_an_unknown_answer_is_one_line_and_neither_blocks_nor_counts_as_enabled(monkeypatch, error):
    said = []

    def refuse(*_):
        raise error

    monkeypatch.setattr("gemma_serving.cloud.enabled.read_enabled_apis", refuse)
    monkeypatch.setattr("gemma_serving.cloud.enabled.connect", lambda *_: None)
    monkeypatch.setattr(pulumi.log, "info", said.append)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
    require_enabled("my-project", ["run"])
    assert len(said) == 1
    assert "Could not check which APIs are enabled" in said[0]
    assert "enable serviceusage.googleapis.com run.googleapis.com --project=my-project" in said[0]


@pytest.mark.parametrize(
    ("type_name", "counts"),
    [
        ("gcp:compute/network:Network", (1, 0)),
        ("gcp:secretmanager/secretIamMember:SecretIamMember", (1, 1)),
        ("gcp:storage/bucketIAMMember:BucketIAMMember", (1, 1)),
        ("gcp:projects/iAMMember:IAMMember", (1, 1)),
        ("gcp:cloudrunv2/serviceIamMember:ServiceIamMember", (1, 0)),
        ("gcp-tpu:index:QueuedResource", None),
    ],
)
def test_resources_of_the_provider_are_hooked_and_grants_are_noted_but_for_those_on_a_service(bound, type_name, counts):
    hooks = bound(lambda: propagation.wait_for_google(project="my-project"))(type_name)
    assert (hooks and (len(hooks.on_error or []), len(hooks.after_create or []))) == counts


@pytest.mark.parametrize(
    ("name", "message", "words"),
    [
        ("image-us-east5", f"Error 403: denied for service account {AGENT}", "tokenSecret is an enabled version"),
        ("docker-hub-token", "googleapi: Error 404: Secret [projects/1/secrets/s] not found.", "tokenSecret is"),
        ("vllm", "Image 'us-east4-docker.pkg.dev/p/r/a@sha256:1' not found.", "gemma-serving:image"),
        ("vllm", "Image 'docker.io/a' not found.", None),
        ("image", "Error 409: the repository already exists", None),
        ("hf-token", "googleapi: Error 404: Secret [projects/1/secrets/s] not found.", None),
    ],
)
def test_an_error_of_an_image_names_the_setting_to_look_at(name, message, words):
    advice = image_advice(name, message)
    assert (advice is None) == (words is None)
    assert words is None or words in (advice or "")


PROJECT = "local-project"
MEMBER = f"serviceAccount:gemma-x@{PROJECT}.iam.gserviceaccount.com"
OTHER = f"other-account@{PROJECT}.iam.gserviceaccount.com"
PLACE = f"projects/{PROJECT}/locations/us-east4"
GRANTS = {
    "gcp:projects/iAMMember:IAMMember": ({}, f"projects remove-iam-policy-binding {PROJECT}"),
    "gcp:serviceaccount/iAMMember:IAMMember": (
        {"serviceAccountId": f"projects/{PROJECT}/serviceAccounts/{OTHER}"},
        f"iam service-accounts remove-iam-policy-binding {OTHER}",
    ),
    "gcp:secretmanager/secretIamMember:SecretIamMember": (
        {"secretId": f"projects/{PROJECT}/secrets/s"},
        "secrets remove-iam-policy-binding s",
    ),
    "gcp:storage/bucketIAMMember:BucketIAMMember": (
        {"bucket": "models"},
        "storage buckets remove-iam-policy-binding gs://models",
    ),
    "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember": (
        {"location": "us-east4", "repository": "r"},
        f"artifacts repositories remove-iam-policy-binding r --location=us-east4 --project={PROJECT}",
    ),
    "gcp:cloudrunv2/serviceIamMember:ServiceIamMember": (
        {"location": "us-east4", "name": f"{PLACE}/services/s"},
        "run services remove-iam-policy-binding s",
    ),
}


@pytest.mark.parametrize("type_", GRANTS)
def test_googles_refusal_names_the_command_that_removes_the_grant(monkeypatch, type_):
    told, (inputs, words) = [], GRANTS[type_]
    monkeypatch.setattr(pulumi.log, "warn", told.append)
    monkeypatch.setattr(pulumi, "get_stack", lambda: "x")
    error = f"Error 400: Inconsistent representation of deleted member: 'deleted:{MEMBER}?uid=1' and '{MEMBER}'."
    given = {"project": PROJECT, "role": "roles/viewer", "member": MEMBER, **inputs}
    args = pulumi.ErrorHookArgs("urn", "", "n", type_, new_inputs=given, failed_operation="create", errors=[error])
    assert not asyncio.run(propagation._Waits(PROJECT).again(args))
    assert f"Run `gcloud {words}" in told[0]
    assert f" --member='deleted:{MEMBER}?uid=1' --role=roles/viewer`, then `gemma up x`." in told[0]

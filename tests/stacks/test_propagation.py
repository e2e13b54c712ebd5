"""What is waited for while Google makes a change effective, and for how long."""

import asyncio

import pulumi
import pulumi_gcp as gcp
import pytest

from stacks import propagation
from stacks.propagation import ProjectNotReadyError, awaited, require_resource_manager

DISABLED = (
    "Error creating Network: googleapi: Error 403: Compute Engine API has not been used in project 269 before or it is disabled. "
    "Enable it by visiting https://console.developers.google.com/apis/api/compute.googleapis.com/overview?project=269 then retry."
)


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (DISABLED, "Compute Engine API"),
        (
            "Error applying IAM policy: googleapi: Error 400: Service account a@p.iam.gserviceaccount.com does not exist.",
            "Service account a@p.iam.gserviceaccount.com",
        ),
        (
            "Error 403: Permission 'iam.serviceaccounts.actAs' denied on service account a@p.iam.gserviceaccount.com (or it may not exist).",
            "service account a@p.iam.gserviceaccount.com",
        ),
        ("Error 403: Permission 'run.services.create' denied on resource 'projects/p' (or it may not exist).", None),
        ("Error 409: the bucket exists", None),
        ("Error 404: The specified bucket does not exist.", None),
    ],
)
def test_only_what_passes_by_itself_is_waited_for(message, what):
    assert awaited(message) == what


def test_a_resource_is_tried_again_for_five_minutes_at_googles_pace(monkeypatch):
    now, pauses = [0.0], []

    async def sleep(seconds):
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(propagation, "monotonic", lambda: now[0])
    monkeypatch.setattr(propagation.asyncio, "sleep", sleep)
    monkeypatch.delenv(propagation.SPEED_VARIABLE, raising=False)
    waits = propagation._Waits()
    errors = []

    async def all_attempts():
        while True:
            errors.insert(0, DISABLED)
            if not await waits.again(pulumi.ErrorHookArgs("urn", "", "n", "t", errors=errors)):
                return

    asyncio.new_event_loop().run_until_complete(all_attempts())
    assert 300 <= sum(pauses) <= 330
    assert pauses[:3] == [5, 10, 15]
    assert max(pauses) == 20


def test_a_simulated_cloud_is_waited_for_at_its_speed(monkeypatch):
    monkeypatch.setenv(propagation.SPEED_VARIABLE, "200")
    assert propagation.real_s(120) == 0.6


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Cloud Resource Manager API has not been used in project 269 before", ProjectNotReadyError),
        ("Error 403: Permission 'resourcemanager.projects.get' denied on resource 'projects/p'", ProjectNotReadyError),
        ("Error 500: backend error", RuntimeError),
    ],
)
def test_a_refused_first_call_is_one_sentence_with_the_command(monkeypatch, text, kind):
    def refuse(**_arguments):
        raise RuntimeError(text)

    monkeypatch.setattr(gcp.organizations, "get_project", refuse)
    with pytest.raises(kind) as caught:
        require_resource_manager("my-project", None)
    command = (
        "gcloud services enable serviceusage.googleapis.com cloudresourcemanager.googleapis.com --project my-project"
    )
    assert (command in str(caught.value)) is text.startswith("Cloud Resource Manager")
    assert ("python -m scripts.doctor --stack" in str(caught.value)) is (kind is ProjectNotReadyError)


@pytest.mark.parametrize(
    ("type_name", "grants", "hooks"),
    [
        ("gcp:compute/network:Network", True, (1, 0)),
        ("gcp:secretmanager/secretIamMember:SecretIamMember", True, (1, 1)),
        ("gcp:storage/bucketIAMMember:BucketIAMMember", True, (1, 1)),
        ("gcp:projects/iAMMember:IAMMember", True, (1, 1)),
        ("gcp:projects/iAMMember:IAMMember", False, (1, 0)),
        ("gcp-tpu:index:QueuedResource", True, None),
    ],
)
def test_resources_of_the_provider_are_hooked_and_grants_only_where_nobody_tries_again(
    monkeypatch, declare, type_name, grants, hooks
):
    transforms = []
    monkeypatch.setattr(pulumi.runtime, "register_stack_transformation", transforms.append)
    declare(lambda: propagation.wait_for_google(grants=grants))
    given = pulumi.ResourceTransformationArgs(None, type_name, "n", {}, pulumi.ResourceOptions(protect=True))
    changed = transforms[0](given)
    if hooks is None:
        assert changed is None
        return
    bound = changed.opts.hooks
    assert (len(bound.on_error or []), len(bound.after_create or [])) == hooks
    assert changed.opts.protect is True

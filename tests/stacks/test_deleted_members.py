"""A policy that still names a deleted account rejects the new one, and the program names the command that removes it."""

import asyncio

import pulumi
import pytest

from gemma_serving.stacks.google_project import propagation

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

"""The small components: identity, token, bucket, network, image."""

import pulumi
import pytest

from components.errors import ComponentError
from components.hf_token_secret import HfTokenSecret, HfTokenSecretArgs
from components.model_bucket import ModelBucket, ModelBucketArgs
from components.private_network import PrivateNetwork, PrivateNetworkArgs
from components.runtime_identity import RuntimeIdentity, RuntimeIdentityArgs
from components.serving_image import ServingImage, ServingImageArgs

READERS = {"server": "serviceAccount:a@my-project.iam.gserviceaccount.com"}
DIGEST = "sha256:" + "a" * 64


def bucket_args(ownership, **changes):
    base = {
        "project": "my-project",
        "name": "my-project-models",
        "location": "us-east4",
        "ownership": ownership,
        "readers": READERS,
        "labels": {"team": "ml"},
    }
    return ModelBucketArgs(**{**base, **changes})


def network_args(ownership, **changes):
    base = {
        "project": "my-project",
        "name": "gemma-x",
        "regions": ["us-east5", "europe-west4"],
        "ownership": ownership,
        "target_tag": "gemma-x",
        "internet_egress": False,
        "allow_iap": True,
    }
    return PrivateNetworkArgs(**{**base, **changes})


def image_args(ownership, **changes):
    base = {
        "project": "my-project",
        "location": "us-east4",
        "repository_id": "gemma-x",
        "upstream": "vllm/vllm-openai",
        "digest": DIGEST,
        "ownership": ownership,
        "labels": {},
        "readers": READERS,
    }
    return ServingImageArgs(**{**base, **changes})


def test_an_identity_has_only_the_roles_that_it_was_given(declare, ownership):
    args = RuntimeIdentityArgs(
        project="my-project", account_id="gemma-x", ownership=ownership, project_roles=["roles/logging.logWriter"]
    )
    recorder, email = declare(lambda: RuntimeIdentity("server", args).email)
    assert email == "gemma-x@my-project.iam.gserviceaccount.com"
    grant = recorder.one("projects/iAMMember")
    assert grant.inputs["role"] == "roles/logging.logWriter"
    assert "gemma-serving-stack=x" in recorder.one("serviceaccount/account").inputs["description"]


def test_a_token_is_a_secret_whatever_the_caller_passes_and_only_its_readers_may_read_it(declare, ownership):
    args = HfTokenSecretArgs(
        project="my-project",
        secret_id="gemma-x-hf-token",
        token=pulumi.Output.from_input("hf_canary"),
        ownership=ownership,
        readers=READERS,
        labels={},
    )
    recorder, version = declare(lambda: HfTokenSecret("hf-token", args).version_name)
    assert version == "hf-token_id/versions/1"
    secret_data = recorder.one("secretVersion").inputs["secretData"]
    assert secret_data == "hf_canary" or secret_data.get("4dabf18193072939515e22adb298388d")
    grant = recorder.one("secretIamMember").inputs
    assert (grant["role"], grant["member"]) == ("roles/secretmanager.secretAccessor", READERS["server"])
    assert recorder.one("secretmanager/secret:Secret").inputs["labels"]["managed-by"] == "gemma-serving"


def test_a_bucket_is_private_and_ours(declare, ownership):
    recorder, bucket = declare(lambda: ModelBucket("models", bucket_args(ownership)).bucket)
    inputs = recorder.one("storage/bucket:Bucket").inputs
    assert bucket == "my-project-models"
    assert (inputs["publicAccessPrevention"], inputs["uniformBucketLevelAccess"]) == ("enforced", True)
    assert inputs["labels"] == {"team": "ml", **ownership.labels}
    assert recorder.one("bucketIAMMember").inputs["role"] == "roles/storage.objectViewer"


def test_an_existing_bucket_is_read_and_never_managed(declare, ownership):
    recorder, bucket = declare(lambda: ModelBucket("models", bucket_args(ownership, existing="their-bucket")).bucket)
    assert bucket == "their-bucket"
    assert recorder.all("storage/bucket:Bucket") == []


def test_every_subnet_has_private_google_access_and_ssh_comes_from_the_proxy_alone(declare, ownership):
    recorder, _ = declare(lambda: PrivateNetwork("network", network_args(ownership)).network)
    subnets = recorder.all("compute/subnetwork")
    assert {subnet.inputs["region"] for subnet in subnets} == {"us-east5", "europe-west4"}
    assert all(subnet.inputs["privateIpGoogleAccess"] is True for subnet in subnets)
    assert len({subnet.inputs["ipCidrRange"] for subnet in subnets}) == 2
    rule = recorder.one("compute/firewall").inputs
    assert rule["sourceRanges"] == ["35.235.240.0/20"]
    assert rule["allows"] == [{"protocol": "tcp", "ports": ["22"]}]
    assert recorder.all("compute/router") == []


def test_the_way_out_exists_only_where_something_needs_it(declare, ownership):
    args = network_args(ownership, internet_egress=True, allow_iap=False)
    recorder, _ = declare(lambda: PrivateNetwork("network", args).network)
    assert len(recorder.all("compute/routerNat")) == 2
    assert recorder.all("compute/firewall") == []


def test_an_image_is_pulled_by_digest_through_the_stacks_own_repository(declare, ownership):
    recorder, ref = declare(lambda: ServingImage("image", image_args(ownership)).ref)
    assert ref == f"us-east4-docker.pkg.dev/my-project/gemma-x/vllm/vllm-openai@{DIGEST}"
    repository = recorder.one("artifactregistry/repository:Repository").inputs
    assert repository["mode"] == "REMOTE_REPOSITORY"
    assert recorder.one("repositoryIamMember").inputs["role"] == "roles/artifactregistry.reader"


def test_a_built_image_starts_from_the_pinned_one_and_is_used_by_its_own_digest(declare, ownership):
    recorder, ref = declare(lambda: ServingImage("image", image_args(ownership, build_context="./image")).ref)
    assert ref.endswith("@sha256:" + "b" * 64)
    assert recorder.one("docker:index/image").inputs["build"]["args"] == {"BASE_IMAGE": f"vllm/vllm-openai@{DIGEST}"}
    assert recorder.one("artifactregistry/repository:Repository").inputs["mode"] == "STANDARD_REPOSITORY"


def test_an_image_without_a_digest_is_refused(declare, ownership):
    with pytest.raises(ComponentError, match='has digest "latest"; pin it'):
        declare(lambda: ServingImage("image", image_args(ownership, digest="latest")).ref)


@pytest.mark.parametrize("kind", ["network", "subnetwork", "firewall", "router:"])
def test_what_has_no_labels_says_whose_it_is_in_its_description(declare, ownership, kind):
    recorder, _ = declare(lambda: PrivateNetwork("network", network_args(ownership, internet_egress=True)).network)
    for resource in recorder.all(f"gcp:compute/{kind}"):
        assert resource.inputs["description"] == ownership.description

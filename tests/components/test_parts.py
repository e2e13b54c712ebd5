"""The small components: identity, token, bucket, network, image."""

import ipaddress
from dataclasses import replace

import pulumi
import pulumi_gcp as gcp
import pytest

from gemma_serving.components import serving_image
from gemma_serving.components.model_bucket import ModelBucket, ModelBucketArgs
from gemma_serving.components.private_network import PrivateNetwork, PrivateNetworkArgs, subnet_range
from gemma_serving.components.serving_image import ServingImage, ServingImageArgs, UpstreamAccount
from gemma_serving.components.stored_secret import (
    ExistingSecret,
    ExistingSecretArgs,
    HuggingFaceToken,
    StoredSecretArgs,
)
from gemma_serving.contracts.labels import Ownership

READERS = {"server": "serviceAccount:a@my-project.iam.gserviceaccount.com"}
REGIONS_OF = {
    "africa": "south1",
    "asia": "east1 east2 northeast1 northeast2 northeast3 south1 south2 southeast1 southeast2",
    "australia": "southeast1 southeast2",
    "europe": "central2 north1 north2 southwest1 west1 west2 west3 west4 west6 west8 west9 west10 west12",
    "me": "central1 central2 west1",
    "northamerica": "northeast1 northeast2 south1",
    "southamerica": "east1 west1",
    "us": "central1 east1 east4 east5 south1 west1 west2 west3 west4",
}
REGIONS = [f"{area}-{name}" for area, names in REGIONS_OF.items() for name in names.split()]
DIGEST = "sha256:" + "a" * 64


OURS = Ownership(project="gemma-serving", stack="x")
BUCKET = ModelBucketArgs(
    project="my-project",
    name="my-project-models",
    location="us-east4",
    ownership=OURS,
    readers=READERS,
    labels={"team": "ml"},
)
NETWORK = PrivateNetworkArgs(
    project="my-project",
    name="gemma-x",
    regions=["us-east5", "europe-west4"],
    ownership=OURS,
    target_tag="gemma-x",
    internet_egress=False,
    allow_iap=True,
)
IMAGE = ServingImageArgs(
    project="my-project",
    locations=("us-east4", "europe-west4"),
    repository_id="gemma-x",
    upstream="vllm/vllm-openai",
    digest=DIGEST,
    ownership=OURS,
    labels={},
    readers=READERS,
)
TOKEN = StoredSecretArgs(
    project="my-project", secret_id="gemma-x-hf-token", value="hf_canary", ownership=OURS, readers=READERS
)


def test_a_token_has_a_version_and_only_its_readers_may_read_it(declare):
    recorder, version = declare(lambda: HuggingFaceToken("hf-token", TOKEN).version_name)
    assert version == "hf-token_id/versions/1"
    grant = recorder.one("secretIamMember").inputs
    assert (grant["role"], grant["member"]) == ("roles/secretmanager.secretAccessor", READERS["server"])
    assert recorder.one("secretmanager/secret:Secret").inputs["labels"]["managed-by"] == "gemma-serving"


def test_a_token_is_a_secret_whatever_the_caller_passes(declare, monkeypatch):
    passed, made = [], gcp.secretmanager.SecretVersion.__init__

    def noted(resource, name, args, **options):
        passed.append(args.secret_data)
        made(resource, name, args, **options)

    monkeypatch.setattr(gcp.secretmanager.SecretVersion, "__init__", noted)

    def is_secret():
        HuggingFaceToken("hf-token", TOKEN)
        return pulumi.Output.from_input(passed[0]).is_secret()

    assert declare(is_secret)[1] is True


def test_an_existing_secret_is_read_and_never_managed(declare):
    args = ExistingSecretArgs(version_name="projects/theirs/secrets/token/versions/7", readers=READERS)
    recorder, secret = declare(lambda: ExistingSecret("hf-token", args).secret_id)
    assert secret == "projects/theirs/secrets/token"
    assert recorder.all("secretmanager/secret:Secret") == recorder.all("secretVersion") == []
    grant = recorder.one("secretIamMember").inputs
    assert (grant["project"], grant["secretId"], grant["member"]) == ("theirs", "token", READERS["server"])


def test_a_bucket_is_private_and_ours(declare):
    recorder, bucket = declare(lambda: ModelBucket("models", BUCKET).bucket)
    inputs = recorder.one("storage/bucket:Bucket").inputs
    assert bucket == "my-project-models"
    assert (inputs["publicAccessPrevention"], inputs["uniformBucketLevelAccess"]) == ("enforced", True)
    assert inputs["labels"] == {"team": "ml", **OURS.labels}
    assert recorder.one("bucketIAMMember").inputs["role"] == "roles/storage.objectViewer"


@pytest.mark.parametrize("protect", [False, True])
def test_a_bucket_with_weights_is_protected(declare, monkeypatch, protect):
    """A change of its location would otherwise empty it and delete it, and with it what a running revision reads."""
    seen, made = [], gcp.storage.Bucket.__init__

    def noted(resource, *arguments, opts=None):
        seen.append(opts.protect)
        made(resource, *arguments, opts=opts)

    monkeypatch.setattr(gcp.storage.Bucket, "__init__", noted)
    declare(lambda: ModelBucket("models", BUCKET if protect else replace(BUCKET, protect=False)).bucket)
    assert seen == [protect]


@pytest.mark.parametrize("retain", [False, True])
def test_a_bucket_that_is_retained_says_so(declare, retain):
    recorder, _ = declare(lambda: ModelBucket("models", replace(BUCKET, retain=retain)).bucket)
    labels = recorder.one("storage/bucket:Bucket").inputs["labels"]
    assert labels.get("gemma-serving-retained") == ("true" if retain else None)


def test_an_existing_bucket_is_read_and_never_managed(declare):
    recorder, bucket = declare(lambda: ModelBucket("models", replace(BUCKET, existing="their-bucket")).bucket)
    assert bucket == "their-bucket"
    assert recorder.all("storage/bucket:Bucket") == []


def test_every_subnet_has_private_google_access_and_ssh_comes_from_the_proxy_alone(declare):
    recorder, _ = declare(lambda: PrivateNetwork("network", NETWORK).network)
    subnets = recorder.all("compute/subnetwork")
    assert {subnet.inputs["region"] for subnet in subnets} == {"us-east5", "europe-west4"}
    assert all(subnet.inputs["privateIpGoogleAccess"] is True for subnet in subnets)
    assert len({subnet.inputs["ipCidrRange"] for subnet in subnets}) == 2
    turned, _ = declare(
        lambda: PrivateNetwork("network", replace(NETWORK, regions=["europe-west4", "us-east5"])).network
    )
    assert {subnet.inputs["region"]: subnet.inputs["ipCidrRange"] for subnet in turned.all("compute/subnetwork")} == {
        subnet.inputs["region"]: subnet.inputs["ipCidrRange"] for subnet in subnets
    }
    rule = recorder.one("compute/firewall").inputs
    assert rule["sourceRanges"] == ["35.235.240.0/20"]
    assert rule["allows"] == [{"protocol": "tcp", "ports": ["22"]}]
    assert recorder.all("compute/router") == []


def test_a_machine_may_connect_to_the_named_ports_and_to_nothing_else(declare):
    args = replace(NETWORK, egress_ports=("443",))
    recorder, _ = declare(lambda: PrivateNetwork("network", args).network)
    rules = {rule.name: rule.inputs for rule in recorder.all("compute/firewall") if rule.name != "network-iap"}
    allow, deny = rules["network-egress"], rules["network-no-egress"]
    assert allow["allows"] == [{"protocol": "tcp", "ports": ["443"]}]
    assert deny["denies"] == [{"protocol": "all"}]
    assert allow["priority"] < deny["priority"] < 65535, "the last one is Google's, which allows everything"
    for rule in (allow, deny):
        assert (rule["direction"], rule["destinationRanges"], rule["targetTags"]) == (
            "EGRESS",
            ["0.0.0.0/0"],
            [args.target_tag],
        )


def test_docker_hubs_account_is_given_by_the_name_of_its_secret_alone(declare):
    account = UpstreamAccount(username="someone", token_secret="projects/p/secrets/hub/versions/3")
    args = replace(IMAGE, upstream_account=account)
    recorder, _ = declare(lambda: ServingImage("image", args).ref)
    for repository in recorder.all("artifactregistry/repository:Repository"):
        credentials = repository.inputs["remoteRepositoryConfig"]["upstreamCredentials"]["usernamePasswordCredentials"]
        assert credentials == {
            "username": "someone",
            "passwordSecretVersion": "projects/p/secrets/hub/versions/3",
        }
    assert recorder.one("projects/serviceIdentity").inputs["service"] == "artifactregistry.googleapis.com"
    grant = recorder.one("secretIamMember").inputs
    assert (grant["secretId"], grant["role"]) == ("projects/p/secrets/hub", "roles/secretmanager.secretAccessor")
    assert grant["member"] == "serviceAccount:service-1@gcp-sa-artifactregistry.iam.gserviceaccount.com"


@pytest.mark.parametrize(("project", "grants"), [("my-project", ["image-server"]), ("vertex-ai", [])])
def test_an_image_of_artifact_registry_is_used_as_it_is_and_readable_in_the_own_project(declare, project, grants):
    upstream = f"us-docker.pkg.dev/{project}/servers/vllm/serve"
    args = replace(IMAGE, upstream=upstream, locations=("us-east5", "europe-west4"), others_pull_upstream=True)
    recorder, ref = declare(lambda: ServingImage("image", args).ref)
    assert ref == f"{upstream}@{DIGEST}"
    assert recorder.all("artifactregistry/repository:Repository") == []
    members = recorder.all("repositoryIamMember")
    assert [one.name for one in members] == grants
    for one in members:
        named = {key: one.inputs[key] for key in ("project", "location", "repository", "role", "member")}
        assert named == {
            "project": "my-project",
            "location": "us",
            "repository": "servers",
            "role": "roles/artifactregistry.reader",
            "member": READERS["server"],
        }


def test_no_two_regions_have_the_same_range():
    ranges = {region: ipaddress.ip_network(subnet_range(region)) for region in REGIONS}
    assert len(ranges) > 30
    assert len(set(ranges.values())) == len(ranges)
    for taken in ("10.64.0.0/16", "10.128.0.0/9"):
        assert not [region for region, found in ranges.items() if found.overlaps(ipaddress.ip_network(taken))]


def test_a_built_image_starts_from_the_pinned_one_and_is_used_by_its_own_digest_of_the_first_region(declare):
    args = replace(IMAGE, build_context="./image")
    recorder, ref = declare(lambda: ServingImage("image", args).ref)
    assert ref.endswith("@sha256:" + "b" * 64)
    assert recorder.one("docker:index/image").inputs["build"]["args"] == {"BASE_IMAGE": f"vllm/vllm-openai@{DIGEST}"}
    repository = recorder.one("artifactregistry/repository:Repository").inputs
    assert (repository["location"], repository["mode"]) == ("us-east4", "STANDARD_REPOSITORY")


def test_without_the_extra_a_built_image_is_refused_before_it_declares_anything(declare, monkeypatch):
    monkeypatch.setattr(serving_image, "find_spec", {}.get)

    def program():
        with pytest.raises(pulumi.RunError) as raised:
            ServingImage("image", replace(IMAGE, build_context="./image"))
        return str(raised.value)

    recorder, said = declare(program)
    assert said.startswith(
        'ServingImage "image": the package pulumi-docker, which builds images, is not installed. Run `'
    )
    assert recorder.declared == []


@pytest.mark.parametrize("kind", ["network", "subnetwork", "firewall", "router:"])
def test_what_has_no_labels_says_whose_it_is_in_its_description(declare, kind):
    recorder, _ = declare(lambda: PrivateNetwork("network", replace(NETWORK, internet_egress=True)).network)
    for resource in recorder.all(f"gcp:compute/{kind}"):
        assert resource.inputs["description"] == OURS.description

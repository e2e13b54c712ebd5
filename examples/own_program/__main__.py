"""Gemma 4 on an L4 of Cloud Run and on one chip of a TPU v6e, in a program with resources of its own."""

import pulumi
import pulumi_gcp as gcp

from gemma_serving.components import (
    CloudRunGpuService,
    CloudRunGpuServiceArgs,
    HuggingFaceToken,
    ModelBucket,
    ModelBucketArgs,
    PrivateNetwork,
    PrivateNetworkArgs,
    StoredSecretArgs,
    TpuQueuedResource,
    TpuQueuedResourceArgs,
    VllmServer,
)
from gemma_serving.planning.data.images import IMAGES
from gemma_serving.planning.settings.cloud_run import CloudRunSettings
from gemma_serving.planning.settings.tpu import TpuSettings

project, location, zone = pulumi.Config("gcp").require("project"), "us-east4", "us-east5-a"
account = gcp.serviceaccount.Account("server", account_id="own-server")
readers = {"server": account.member}
gcp.projects.IAMMember("logs", project=project, role="roles/logging.logWriter", member=account.member)
value = pulumi.Config().require_secret("hfToken")
stored = StoredSecretArgs(project=project, secret_id="own-hf-token", value=value, readers=readers)
token = HuggingFaceToken("hf-token", stored)
# Empty until you copy files to it, so it needs no protection from `pulumi destroy`.
files = ModelBucketArgs(project=project, name=f"{project}-own", location=location, readers=readers, protect=False)
bucket = ModelBucket("models", files)
network = PrivateNetwork(
    "network", PrivateNetworkArgs(project=project, name="own", regions=[zone[:-2]], target_tag="own")
)


def server(image: str) -> VllmServer:
    """Return the server, in an image that is pinned by digest."""
    words = ["google/gemma-4-E2B-it", "--max-model-len=8192"]
    return VllmServer(image=IMAGES[image].reference, arguments=words, secrets={"HF_TOKEN": token})


run = CloudRunSettings(region=location, gpu="nvidia-l4", cpu=8, memory_mib=32_768, concurrency=16, max_instances=1)
gpu = CloudRunGpuServiceArgs(
    project=project,
    service_name="own-gpu",
    service_account=account.email,
    service=run,
    server=server("vllm-openai"),
    bucket=bucket,
)
tpu = TpuQueuedResourceArgs(
    project=project,
    queued_resource_id="own-tpu",
    service_account=account.email,
    network=network.network,
    subnetwork=network.subnetwork_name,
    tags=["own"],
    tpu=TpuSettings(accelerator_type="v6e-1", zones=(zone,), max_run_duration_s=4 * 3_600),
    server=server("vllm-tpu"),
)
pulumi.export("url", CloudRunGpuService("gpu", gpu).uri)
node = TpuQueuedResource("tpu", tpu, pulumi.ResourceOptions(depends_on=[network]))
pulumi.export("zone", node.zone)

"""Gemma 4 on an L4 of Cloud Run, with the package that `pulumi package add` generated. docs/package.md has the commands."""

import pulumi
import pulumi_gemma_serving as gemma

config = pulumi.Config()
project = pulumi.Config("gcp").require("project")
account = config.require("serviceAccount")
token = gemma.HuggingFaceToken(
    "hf-token",
    project=project,
    secret_id="package-hf-token",
    value=config.require_secret("hfToken"),
    readers={"server": f"serviceAccount:{account}"},
)
server = gemma.CloudRunGpuService(
    "gemma",
    project=project,
    service_name="package-gemma",
    service_account=account,
    model="google/gemma-4-E2B-it",
    model_revision="3e22461f65e89153144f8adb70e3b8c2cc9845a7",
    secrets={"HF_TOKEN": token.version_name},
    vllm={"max_model_len": 8_192},
    cloud_run={
        "region": "us-east4",
        "gpu": "nvidia-l4",
        "cpu": 8,
        "memory": "20Gi",
        "concurrency": 16,
        "max_instances": 1,
    },
)
pulumi.export("url", server.uri)
pulumi.export("plan", server.plan)

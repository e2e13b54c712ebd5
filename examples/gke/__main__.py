"""The server of stack l4-12b-qat on an existing GKE cluster, with access to the stack's bucket and secrets."""

from pathlib import Path

import pulumi
import pulumi_gcp as gcp

from gemma_serving.components.gke_model_server import GkeModelServer, GkeModelServerArgs, workload_member
from gemma_serving.components.model_bucket import ModelBucket, ModelBucketArgs
from gemma_serving.components.stored_secret import ExistingSecret, ExistingSecretArgs
from gemma_serving.gke.server import GkeOptions
from gemma_serving.stacks.gke_program import server_on_gke

config, project = pulumi.Config(), pulumi.Config("gcp").require("project")
namespace, settings = config.require("namespace"), Path(__file__).parents[2] / "Pulumi.l4-12b-qat.yaml"
server, objects, _ = server_on_gke(settings, GkeOptions(replicas=(1, 3)), project=project)
number = gcp.organizations.get_project_output(project_id=project).number
member = workload_member(project=project, project_number=number, namespace=namespace, account=server.name)
bucket, token, api_key, readers = None, None, None, {"gke": member}
if name := server.bucket:
    weights = ModelBucketArgs(
        project=project,
        name=name,
        existing=name,
        location="us-east4",
        readers=readers,
        archivers=readers if server.programs else {},
    )
    bucket = ModelBucket("weights", weights)
if server.token_secret:
    token = ExistingSecret("hf-token", ExistingSecretArgs(version_name=server.token_secret, readers=readers))
if server.key_secret:
    api_key = ExistingSecret("api-key", ExistingSecretArgs(version_name=server.key_secret, readers=readers))
place = GkeModelServerArgs(
    context=config.require("context"), namespace=namespace, objects=objects, bucket=bucket, token=token, api_key=api_key
)
pulumi.export("service", GkeModelServer("server", place).service)

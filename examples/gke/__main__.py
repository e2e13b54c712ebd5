"""The server of stack l4-12b-qat on an existing GKE cluster, with access to the stack's bucket and secrets."""

from pathlib import Path

import pulumi
import pulumi_gcp as gcp

from gemma_serving.components.gke_model_server import GkeModelServer, GkeModelServerArgs, workload_member
from gemma_serving.components.model_bucket import ModelBucket, ModelBucketArgs
from gemma_serving.components.stored_secret import ExistingSecret, ExistingSecretArgs
from gemma_serving.gke.server_inputs import PROGRAMS_FOLDER, GkeOptions
from gemma_serving.stacks.gke_program import server_on_gke

config, project = pulumi.Config(), pulumi.Config("gcp").require("project")
namespace, settings = config.require("namespace"), Path(__file__).parents[2] / "Pulumi.l4-12b-qat.yaml"
server, objects, _ = server_on_gke(settings, GkeOptions(replicas=(1, 3)), project=project)
number = gcp.organizations.get_project_output(project_id=project).number
member = workload_member(project=project, project_number=number, namespace=namespace, account=server.name)
readers = {"gke": member}
granted: list[pulumi.Resource] = []
if name := server.bucket:
    weights = ModelBucketArgs(
        project=project,
        name=name,
        existing=name,
        location="us-east4",
        readers=readers,
        archivers=readers if server.programs else {},
        archive_folder=PROGRAMS_FOLDER,
    )
    granted.append(ModelBucket("weights", weights))
for name, version in {"hf-token": server.token_secret, "api-key": server.key_secret}.items():
    if version:
        granted.append(ExistingSecret(name, ExistingSecretArgs(version_name=version, readers=readers)))
place = GkeModelServerArgs(context=config.require("context"), namespace=namespace, objects=objects)
pulumi.export("service", GkeModelServer("server", place, pulumi.ResourceOptions(depends_on=granted)).service)

"""Cloud Resource Manager v1 and v3: projects and their IAM policies."""

from localcloud.json_values import JsonObject, part
from localcloud.rest.call import Call, Handler
from localcloud.rest.errors import CloudError
from localcloud.services import networks, serviceusage
from localcloud.services.common import held
from localcloud.world.cloud import Cloud, project_policy


def found_project(cloud: Cloud, project: str, number: str | None = None) -> JsonObject:
    """Make a project with what a new one has: enabled APIs as the scenario says, and the default network."""
    known = cloud.store.has("projects", project)
    document = cloud.add_project(project, number)
    if not known:
        serviceusage.enable_initial(cloud, project)
        networks.add_default(cloud, project)
    return document


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Methods of projects."""

    def project_of(call: Call) -> str:
        name = call.path.get("projectId") or call.name
        return name.removeprefix("projects/")

    def shown(call: Call, project: str) -> JsonObject:
        document = cloud.store.get("projects", project)
        if document is None:
            raise CloudError.denied("The caller does not have permission")
        if call.document.version == "v1":
            return document
        return {
            "name": f"projects/{document['projectNumber']}",
            "projectId": project,
            "displayName": document["name"],
            "state": "ACTIVE",
            "createTime": document["createTime"],
            "updateTime": document["createTime"],
        }

    def read(call: Call) -> JsonObject:
        project = project_of(call)
        return shown(call, cloud.project_id(project) or project)

    def listed(call: Call) -> JsonObject:
        return {"projects": [shown(call, name) for name, _ in cloud.store.under("projects")]}

    def read_policy(call: Call) -> JsonObject:
        return cloud.policies.get(project_policy(project_of(call)))

    def write_policy(call: Call) -> JsonObject:
        return cloud.policies.replace(
            project_policy(project_of(call)), part(call.body, "policy"), mask=call.body.get("updateMask")
        )

    def test(call: Call) -> JsonObject:
        return {"permissions": held(cloud, call, [project_policy(project_of(call))])}

    prefix = "cloudresourcemanager.projects"
    return {
        f"{prefix}.get": read,
        f"{prefix}.list": listed,
        f"{prefix}.search": listed,
        f"{prefix}.getIamPolicy": read_policy,
        f"{prefix}.setIamPolicy": write_policy,
        f"{prefix}.testIamPermissions": test,
    }

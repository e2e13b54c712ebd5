"""Cloud Resource Manager v1 and v3: projects and their IAM policies."""

from localcloud.json_values import JsonObject
from localcloud.rest.call import Call, Handler
from localcloud.rest.errors import CloudError
from localcloud.services import networks, serviceusage
from localcloud.services.service import PolicyService, method
from localcloud.world.cloud import Cloud, project_policy


def ensure_project(cloud: Cloud, project: str, number: str | None = None) -> JsonObject:
    """Return a project. If it does not exist, create it with the scenario's enabled APIs and the default network."""
    known = cloud.store.has("projects", project)
    document = cloud.add_project(project, number)
    if not known:
        serviceusage.enable_initial(cloud, project)
        networks.add_default(cloud, project)
    return document


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of projects."""
    return _Projects(cloud).handlers()


class _Projects(PolicyService):
    prefix = "cloudresourcemanager.projects"

    def find(self, call: Call) -> JsonObject:
        project = _project_of(call)
        return self._shown(call, self._cloud.project_id(project) or project)

    def policy_name(self, call: Call) -> str:
        return project_policy(_project_of(call))

    @method("list", "search")
    def list_all(self, call: Call) -> JsonObject:
        return {"projects": [self._shown(call, name) for name, _ in self._store.under("projects")]}

    def _shown(self, call: Call, project: str) -> JsonObject:
        document = self._store.get("projects", project)
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


def _project_of(call: Call) -> str:
    return (call.path.get("projectId") or call.name).removeprefix("projects/")

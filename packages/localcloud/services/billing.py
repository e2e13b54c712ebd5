"""Cloud Billing v1: the billing account of a project. The local cloud bills nothing; its projects have an account to resemble real ones."""

from localcloud.json_values import JsonObject
from localcloud.rest.call import Call, Handler
from localcloud.rest.errors import CloudError
from localcloud.services.service import ApiService, method
from localcloud.world.cloud import Cloud

_ACCOUNT = "billingAccounts/000000-000000-000000"


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of projects."""
    return _Projects(cloud).handlers()


class _Projects(ApiService):
    prefix = "cloudbilling.projects"

    @method("getBillingInfo")
    def get_billing_info(self, call: Call) -> JsonObject:
        """Return the billing account of a project. Every project of the local cloud has it."""
        project = call.name.removeprefix("projects/")
        if self._store.get("projects", project) is None:
            raise CloudError.denied("The caller does not have permission")
        return {
            "name": f"projects/{project}/billingInfo",
            "projectId": project,
            "billingAccountName": _ACCOUNT,
            "billingEnabled": True,
        }

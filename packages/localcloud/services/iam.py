"""IAM v1: service accounts, their keys (public halves only) and policies."""

import secrets

from localcloud.json_values import JsonObject, part
from localcloud.rest.call import Call, Handler, check_id, masked
from localcloud.rest.errors import CloudError
from localcloud.services.checks import required_mask
from localcloud.services.service import PolicyService, listing, method, visible
from localcloud.world.cloud import Cloud

ACCOUNTS = "iam.serviceAccounts"
_ACCOUNT_ID = "[a-z]([-a-z0-9]{4,28}[a-z0-9])"
_MAX_DISPLAY_NAME, _MAX_DESCRIPTION = 100, 256
_UPDATABLE = {"displayName", "description"}


_AGENT_DOMAINS = {
    "artifactregistry": "gcp-sa-artifactregistry",
    "compute": "compute-system",
    "run": "serverless-robot-prod",
    "secretmanager": "gcp-sa-secretmanager",
    "tpu": "cloud-tpu",
}
"""Domains of the service agents' accounts (cloud.google.com/iam/docs/service-agents, 2026-11)."""


def add_service_agent(cloud: Cloud, project: str, api: str) -> str | None:
    """Record the first use of an API in a project, which creates its service agent. Return its email, or None if the API has none."""
    if api not in _AGENT_DOMAINS:
        return None
    email = f"service-{cloud.project_number(project)}@{_AGENT_DOMAINS[api]}.iam.gserviceaccount.com"
    if not cloud.store.has("iam.serviceAgents", email):
        cloud.store.put("iam.serviceAgents", email, {})
    return email


def add_account(
    cloud: Cloud, project: str, account_id: str, *, display_name: str = "", description: str = "", lag_s: float = 0.0
) -> JsonObject:
    """Store a new service account and return it. It can be read after half of the lag, and used after the whole lag."""
    email = f"{account_id}@{project}.iam.gserviceaccount.com"
    document: JsonObject = {
        "name": f"projects/{project}/serviceAccounts/{email}",
        "projectId": project,
        "uniqueId": str(10**20 + secrets.randbelow(10**20)),
        "email": email,
        "etag": cloud.ids.etag(),
        "oauth2ClientId": str(10**20 + secrets.randbelow(10**20)),
    }
    if lag_s:
        now_s = cloud.timeline.simulated_s()
        document.update({"_readable_from_s": now_s + lag_s / 2, "_usable_from_s": now_s + lag_s})
        document["_refusals"] = cloud.scenario.iam.new_account_refusals
    if display_name:
        document["displayName"] = display_name
    if description:
        document["description"] = description
    return cloud.store.put(ACCOUNTS, email, document)


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of service accounts."""
    return _ServiceAccounts(cloud).handlers()


class _ServiceAccounts(PolicyService):
    prefix = "iam.projects.serviceAccounts"

    def find(self, call: Call) -> JsonObject:
        project, email = call.name.split("/")[1], call.name.split("/")[3]
        by_number = [document for _, document in self._store.under(ACCOUNTS) if document["uniqueId"] == email]
        document = self._store.get(ACCOUNTS, email) or (by_number[0] if by_number else None)
        if (
            document is None
            or project not in {"-", document["projectId"]}
            or document.get("_readable_from_s", 0.0) > self._cloud.timeline.simulated_s()
        ):
            raise CloudError.not_found(f"Unknown service account {email}; resource '{call.name}' was not found.")
        return document

    def policy_name(self, call: Call) -> str:
        """Return the key of the stored policy, even if the call names the account by its number or with the project `-`."""
        return f"//iam.googleapis.com/{self.find(call)['name']}"

    @method("create")
    def create(self, call: Call) -> JsonObject:
        project = call.name.split("/")[1]
        account_id = check_id(call.body.get("accountId"), "accountId", _ACCOUNT_ID)
        if self._store.has(ACCOUNTS, f"{account_id}@{project}.iam.gserviceaccount.com"):
            raise CloudError.already_exists(
                f"Service account {account_id} already exists within project projects/{project}."
            )
        given = part(call.body, "serviceAccount")
        _check_texts(given)
        return visible(
            add_account(
                self._cloud,
                project,
                account_id,
                display_name=given.get("displayName", ""),
                description=given.get("description", ""),
                lag_s=self._cloud.scenario.iam.new_account_lag_s,
            )
        )

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        prefix = f"{call.name}/serviceAccounts/"
        accounts = [item for item in self.visible_under(ACCOUNTS, "") if item[1]["name"].startswith(prefix)]
        return listing(call.query, "accounts", accounts, default=20, maximum=100)

    @method("patch")
    def patch(self, call: Call) -> JsonObject:
        document, given = self.find(call), part(call.body, "serviceAccount")
        if given.get("etag") and given["etag"] != document["etag"]:
            raise CloudError.aborted(
                f"The etag '{given['etag']}' does not match the current one, '{document['etag']}'."
            )
        _check_texts(given)
        return self._save(masked(document, given, required_mask(call.body.get("updateMask")), allowed=_UPDATABLE))

    @method("delete")
    def delete(self, call: Call) -> JsonObject:
        document = self.find(call)
        self._store.delete(ACCOUNTS, document["email"])
        self._cloud.policies.forget(f"//iam.googleapis.com/{document['name']}")
        self._cloud.policies.mark_deleted(f"serviceAccount:{document['email']}", document["uniqueId"])
        return {}

    @method("enable")
    def enable(self, call: Call) -> JsonObject:
        return self._set_disabled(call, disabled=False)

    @method("disable")
    def disable(self, call: Call) -> JsonObject:
        return self._set_disabled(call, disabled=True)

    def _set_disabled(self, call: Call, *, disabled: bool) -> JsonObject:
        document = self.find(call)
        self._store.put(ACCOUNTS, document["email"], {**document, "disabled": disabled})
        return {}

    def _save(self, document: JsonObject) -> JsonObject:
        return visible(self._store.put(ACCOUNTS, document["email"], {**document, "etag": self._cloud.ids.etag()}))


def _check_texts(account: JsonObject) -> None:
    for key, limit in (("displayName", _MAX_DISPLAY_NAME), ("description", _MAX_DESCRIPTION)):
        size = len((account.get(key) or "").encode())
        if size > limit:
            raise CloudError.field(f"service_account.{key}", f"{key} has {size} bytes; at most {limit} are allowed.")

"""IAM v1: service accounts, their keys (public halves only) and policies."""

import secrets

from localcloud.json_values import JsonObject, part
from localcloud.rest.call import Call, Handler, check_id, masked, page
from localcloud.rest.errors import CloudError
from localcloud.services.common import policy_handlers, visible, with_token
from localcloud.world.cloud import Cloud

ACCOUNTS = "iam.serviceAccounts"
_ACCOUNT_ID = "[a-z]([-a-z0-9]{4,28}[a-z0-9])"
_MAX_DISPLAY_NAME, _MAX_DESCRIPTION = 100, 256


def add_account(
    cloud: Cloud, project: str, account_id: str, *, display_name: str = "", description: str = ""
) -> JsonObject:
    """Store a new service account and return it."""
    email = f"{account_id}@{project}.iam.gserviceaccount.com"
    document: JsonObject = {
        "name": f"projects/{project}/serviceAccounts/{email}",
        "projectId": project,
        "uniqueId": str(10**20 + secrets.randbelow(10**20)),
        "email": email,
        "etag": cloud.ids.etag(),
        "oauth2ClientId": str(10**20 + secrets.randbelow(10**20)),
    }
    if display_name:
        document["displayName"] = display_name
    if description:
        document["description"] = description
    return cloud.store.put(ACCOUNTS, email, document)


def handlers(cloud: Cloud) -> dict[str, Handler]:  # noqa: C901 - small functions side by side, one a method
    """Methods of service accounts."""

    def account(call: Call) -> JsonObject:
        project, email = call.name.split("/")[1], call.name.split("/")[3]
        by_number = [document for _, document in cloud.store.under(ACCOUNTS) if document["uniqueId"] == email]
        document = cloud.store.get(ACCOUNTS, email) or (by_number[0] if by_number else None)
        if document is None or project not in {"-", document["projectId"]}:
            raise CloudError.not_found(f"Unknown service account {email}; resource '{call.name}' was not found.")
        return document

    def exists(call: Call) -> None:
        account(call)

    def create(call: Call) -> JsonObject:
        project = call.name.split("/")[1]
        account_id = check_id(call.body.get("accountId"), "accountId", _ACCOUNT_ID)
        if cloud.store.has(ACCOUNTS, f"{account_id}@{project}.iam.gserviceaccount.com"):
            raise CloudError.already_exists(
                f"Service account {account_id} already exists within project projects/{project}."
            )
        given = part(call.body, "serviceAccount")
        check_texts(given)
        return visible(
            add_account(
                cloud,
                project,
                account_id,
                display_name=given.get("displayName", ""),
                description=given.get("description", ""),
            )
        )

    def check_texts(given: JsonObject) -> None:
        for key, limit in (("displayName", _MAX_DISPLAY_NAME), ("description", _MAX_DESCRIPTION)):
            if len((given.get(key) or "").encode()) > limit:
                raise CloudError.field(
                    f"service_account.{key}",
                    f"{key} has {len(given[key].encode())} bytes; at most {limit} are allowed.",
                )

    def read(call: Call) -> JsonObject:
        return visible(account(call))

    def listed(call: Call) -> JsonObject:
        prefix = f"{call.name}/serviceAccounts/"
        found = [
            (email, visible(document))
            for email, document in cloud.store.under(ACCOUNTS)
            if document["name"].startswith(prefix)
        ]
        accounts, following = page(
            found, size=call.query.get("pageSize"), token=call.query.get("pageToken"), default=20, maximum=100
        )
        return with_token({"accounts": accounts}, following)

    def patch(call: Call) -> JsonObject:
        document, given = account(call), part(call.body, "serviceAccount")
        if given.get("etag") and given["etag"] != document["etag"]:
            raise CloudError.aborted(
                f"The etag '{given['etag']}' does not match the current one, '{document['etag']}'."
            )
        check_texts(given)
        mask = call.body.get("updateMask")
        if not mask:
            raise CloudError.field("update_mask", "The update mask is required and must not be empty.")
        updated = masked(document, given, mask, allowed={"displayName", "description"})
        updated["etag"] = cloud.ids.etag()
        return visible(cloud.store.put(ACCOUNTS, document["email"], updated))

    def update(call: Call) -> JsonObject:
        document = account(call)
        updated = {
            **document,
            **{key: value for key, value in call.body.items() if key in {"displayName", "description"}},
            "etag": cloud.ids.etag(),
        }
        return visible(cloud.store.put(ACCOUNTS, document["email"], updated))

    def delete(call: Call) -> JsonObject:
        document = account(call)
        cloud.store.delete(ACCOUNTS, document["email"])
        cloud.policies.forget(f"//iam.googleapis.com/{document['name']}")
        return {}

    def turn(disabled: bool) -> Handler:
        def run(call: Call) -> JsonObject:
            document = account(call)
            document["disabled"] = disabled
            cloud.store.put(ACCOUNTS, document["email"], document)
            return {}

        return run

    prefix = "iam.projects.serviceAccounts"
    return {
        f"{prefix}.create": create,
        f"{prefix}.get": read,
        f"{prefix}.list": listed,
        f"{prefix}.patch": patch,
        f"{prefix}.update": update,
        f"{prefix}.delete": delete,
        f"{prefix}.enable": turn(disabled=False),
        f"{prefix}.disable": turn(disabled=True),
        **policy_handlers(cloud, prefix, exists),
    }

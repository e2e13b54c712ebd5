"""SSH logins to TPU machines through Identity-Aware Proxy: the checks of IAP and OS Login in addition to the APIs' own."""

from localcloud.json_values import parts
from localcloud.rest.errors import CloudError
from localcloud.services import compute_instances, oslogin, tpu_requests
from localcloud.services.checks import may_act_as
from localcloud.services.compute_instances import INSTANCES
from localcloud.services.tpu_nodes import NODES, metadata_of
from localcloud.world.cloud import Cloud, project_policy

_SSH_PORT = 22
_OS_LOGIN = "enable-oslogin"
_SSH_KEYS = "ssh-keys"
_SERVICE_ACCOUNTS = ".gserviceaccount.com"


def check_login(cloud: Cloud, node: str, email: str) -> None:
    """Raise 403 if IAP denies the tunnel to a node's SSH port, or the node denies the login.

    IAP provides `destination.port` and `destination.ip` to conditions (cloud.google.com/iap/docs/using-tcp-forwarding, 2026-11). With OS Login
    a login needs `compute.instances.osLogin`, actAs on the machine's account and a key in the user's profile
    (cloud.google.com/compute/docs/oslogin/set-up-oslogin, 2026-11), and a user outside the organization also needs
    `roles/compute.osLoginExternalUser` on it ("Manage OS Login in an organization"). Without OS Login, a key in the machine's metadata
    suffices; keys in the project's metadata are not modeled. That project-level conditions see no attribute of the machine is assumed
    because Google runs it in a separate project.
    """
    document = cloud.store.get(NODES, node) or cloud.store.get(INSTANCES, node)
    if document is None:
        raise CloudError.not_found(f"Resource '{node}' was not found.")
    if email == cloud.operator:
        return
    project = node.split("/")[1]
    policy = project_policy(project)
    is_instance = "networkInterfaces" in document
    address = (
        parts(document, "networkInterfaces")[0]["networkIP"]
        if is_instance
        else parts(document, "networkEndpoints")[0]["ipAddress"]
    )
    destination = {"destination.port": _SSH_PORT, "destination.ip": address}
    if not cloud.policies.allows(email, "iap.tunnelInstances.accessViaIAP", [policy], destination):
        raise CloudError.denied("Error while connecting [4033: 'not authorized'].")
    metadata = compute_instances.metadata_of(document) if is_instance else metadata_of(document)
    if metadata.get(_OS_LOGIN, "").upper() != "TRUE":
        if not metadata.get(_SSH_KEYS, "").strip():
            raise CloudError.denied("Permission denied (publickey).")
        return
    account = str(document["_request"]["account"]) if is_instance else tpu_requests.account_of(cloud, project, document)
    allowed = cloud.policies.allows(email, "compute.instances.osLogin", [policy])
    if _is_outside(cloud, email):
        raise CloudError.denied("Permission denied (publickey).")
    if not (allowed and may_act_as(cloud, email, account, project) and oslogin.has_key(cloud, email)):
        raise CloudError.denied("Permission denied (publickey).")


def _is_outside(cloud: Cloud, email: str) -> bool:
    """Return whether OS Login denies a user of another organization who lacks the role for external users."""
    domain, own = email.rpartition("@")[2], cloud.scenario.iam.organization_domain
    if not own or domain == own or domain.endswith(_SERVICE_ACCOUNTS):
        return False
    return email not in cloud.scenario.iam.external_logins

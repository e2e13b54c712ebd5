"""Checks of a Cloud Run revision's references at deployment: images, secrets, buckets, networks. A failed check fails the deployment."""

from collections.abc import Sequence
from dataclasses import dataclass

from localcloud.json_values import JsonObject, part, parts, strings
from localcloud.rest.errors import CloudError
from localcloud.services import networks, run_mount_options
from localcloud.services.registries import Registries, RegistryError, parse
from localcloud.services.secretmanager import SECRETS, version_name
from localcloud.world import run_messages
from localcloud.world.cloud import Cloud, project_policy
from localcloud.world.runtime import OPEN, Egress


class DeploymentFailedError(Exception):
    """A failed deployment: message, Cloud Run's condition reason, google.rpc.Code number."""

    def __init__(self, message: str, *, reason: str, code: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """Checks one template for one service."""

    cloud: Cloud
    service: str
    template: JsonObject

    @property
    def _project(self) -> str:
        return self.service.split("/")[1]

    def account(self) -> None:
        """Reject the request if the service account does not exist."""
        email = str(self.template.get("serviceAccount", ""))
        if self.cloud.policies.lacks_account(email):
            raise CloudError.denied(
                f"Permission 'iam.serviceaccounts.actAs' denied on service account {email} (or it may not exist)."
            )

    def networks(self) -> list[str]:
        """Return the full names of the networks and subnetworks of Direct VPC egress. Raise DeploymentFailedError if one does not exist."""
        names: list[str] = []
        for interface in parts(part(self.template, "vpcAccess"), "networkInterfaces"):
            try:
                names += networks.resolve_pair(
                    self.cloud,
                    self._project,
                    self.service.split("/")[3],
                    interface.get("network"),
                    interface.get("subnetwork"),
                )
            except CloudError as error:
                raise DeploymentFailedError(
                    f"VPC network access: {error.message}", reason="VPC_NETWORK_NOT_FOUND", code=5
                ) from None
        return names

    def egress(self, used: Sequence[str]) -> Egress:
        """Return what an instance reaches. Only with ALL_TRAFFIC do public addresses lead through its network. `used`: the result of `networks`."""
        access = part(self.template, "vpcAccess")
        subnetwork = networks.subnetwork_of(self.cloud, self._project, self.service.split("/")[3], used)
        if access.get("egress") != "ALL_TRAFFIC" or subnetwork is None:
            return OPEN
        return networks.egress_of(self.cloud, subnetwork, strings(parts(access, "networkInterfaces")[0], "tags"))

    def images(self) -> None:
        """Raise DeploymentFailedError for an image that does not exist or that its registry denies.

        The message is Cloud Run's for an image that does not exist (github.com/google-github-actions/deploy-cloudrun/issues/465, 2023-09). That the
        message is the same when the registry denies access is assumed.
        """
        region = self.service.split("/")[3]
        for container in self.template["containers"]:
            reference = parse(container["image"])
            try:
                if reference is not None:
                    Registries(self.cloud).find(reference, address=f"cloud-run-{region}")
                    continue
            except RegistryError:
                pass
            raise DeploymentFailedError(f"Image '{container['image']}' not found.", reason="CONTAINER_MISSING", code=5)

    def secrets(self) -> None:
        """Raise DeploymentFailedError for a secret that does not exist or that the revision's account cannot read."""
        wanted = [
            (
                env["valueSource"]["secretKeyRef"].get("secret", ""),
                env["valueSource"]["secretKeyRef"].get("version") or "latest",
            )
            for container in self.template["containers"]
            for env in parts(container, "env")
            if part(env, "valueSource").get("secretKeyRef")
        ]
        for secret, version in wanted:
            self._secret(secret, version)

    def _secret(self, secret: str, version: str) -> None:
        parts = secret.split("/")
        project = self.cloud.project_id(parts[1]) or parts[1] if len(parts) > 1 else self._project
        name = f"projects/{project}/secrets/{parts[-1]}"
        full = f"{name}/versions/{version}"
        try:
            document = self.cloud.store.get("secretmanager.versions", version_name(self.cloud, full)) or {}
        except CloudError:
            raise DeploymentFailedError(
                f"Secret {full} was not found", reason="SECRETS_ACCESS_CHECK_FAILED", code=5
            ) from None
        if not self._may(
            "secretmanager.versions.access", [f"//secretmanager.googleapis.com/{name}", project_policy(project)]
        ):
            raise DeploymentFailedError(
                f"Permission denied on secret: {full} for Revision service account {self.template['serviceAccount']}. "
                "The service account used must be granted the "
                "'Secret Manager Secret Accessor' role (roles/secretmanager.secretAccessor) at the secret, project or higher level.",
                reason="SECRETS_ACCESS_CHECK_FAILED",
                code=7,
            )
        if document["state"] != "ENABLED" or not self.cloud.store.has(SECRETS, name):
            raise DeploymentFailedError(
                f"Secret {full} is in state {document['state']} and cannot be read",
                reason="SECRETS_ACCESS_CHECK_FAILED",
                code=9,
            )

    def unmountable(self, egress: Egress) -> tuple[str, str] | None:
        """Return the first volume that gcsfuse cannot mount and its error message, or None.

        It rejects the options, the instance does not reach Cloud Storage, the bucket does not exist, or the revision's account cannot list it.
        """
        for volume in parts(self.template, "volumes"):
            bucket = part(volume, "gcs").get("bucket")
            if not bucket:
                continue
            rejection = run_mount_options.rejection(strings(part(volume, "gcs"), "mountOptions"))
            if rejection is not None:
                return volume["name"], rejection
            if not egress.google:
                return volume["name"], run_messages.bucket_unreachable()
            document = self.cloud.store.get("storage.buckets", bucket)
            if document is None:
                return volume["name"], run_messages.no_such_bucket()
            resources = [f"//storage.googleapis.com/{bucket}", project_policy(document["_project"])]
            if not self._may("storage.objects.list", resources):
                return volume["name"], run_messages.bucket_denied(self.template["serviceAccount"], bucket)
        return None

    def _may(self, permission: str, resources: list[str]) -> bool:
        return self.cloud.policies.allows(str(self.template["serviceAccount"]), permission, resources)

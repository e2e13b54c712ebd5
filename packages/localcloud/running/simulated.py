"""Runtimes of the local cloud: simulated vLLM servers for revisions, fronts that check invokers, machines that run their startup script."""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import asdict

from localcloud.rest.errors import CloudError
from localcloud.running.fronts import Fronts
from localcloud.running.machines import SimulatedMachines
from localcloud.running.revisions import SimulatedRevisions
from localcloud.running.starters import GoogleAccess
from localcloud.services.run import authorizer
from localcloud.services.secretmanager import version_name
from localcloud.world import run_messages
from localcloud.world.cloud import Cloud, Runtimes, project_policy
from localcloud.world.run_messages import LogLine
from localcloud.world.runtime import RevisionFailedError


def simulated_runtimes(cloud: Cloud) -> Runtimes:
    """Return runtimes that read secrets and buckets of this cloud with the identities of the revisions and machines."""

    def read_secret(name: str, account: str) -> str:
        """Return the payload of a secret version for a revision's service account."""
        secret = name.partition("/versions/")[0]
        project = cloud.project_id(name.split("/")[1]) or name.split("/")[1]
        full = "/".join(["projects", project, *name.split("/")[2:]])
        resources = [f"//secretmanager.googleapis.com/{'/'.join(full.split('/')[:4])}", project_policy(project)]
        if not cloud.policies.allows(account, "secretmanager.versions.access", resources):
            raise RevisionFailedError(f"Permission denied on secret: {secret} for Revision service account {account}.")
        return _payload(cloud, full)

    def list_objects(bucket: str) -> Mapping[str, int] | None:
        """Return names and sizes in bytes of a bucket's objects."""
        if not cloud.store.has("storage.buckets", bucket):
            return None
        return {
            name.split("/", 1)[1]: int(document["size"])
            for name, document in cloud.store.under("storage.objects", bucket + "/")
        }

    def write_log(revision: str, line: LogLine) -> None:
        cloud.logs.write(run_messages.entry(line, revision))

    def may(bucket: str, account: str, permission: str) -> bool:
        """Return whether an account has a permission on a bucket."""
        document = cloud.store.get("storage.buckets", bucket) or {}
        resources = [f"//storage.googleapis.com/{bucket}", project_policy(str(document.get("_project", "")))]
        return cloud.policies.allows(account, permission, resources)

    def version_of(image: str) -> str:
        """Return the version in the tag of the scenario's image with this digest."""
        digest = image.partition("@")[2]
        tagged = (
            re.search(r":v(\d[\w.]*)@", entry) for entry in cloud.scenario.images.existing if digest and digest in entry
        )
        return next((found[1] for found in tagged if found), "")

    def driver_of(gpu: str) -> int | None:
        """Return the branch of a GPU's driver in this scenario."""
        return cloud.scenario.run.gpu_drivers.get(gpu)

    def faults() -> str:
        """Return the scenario's faults of model servers, as a variable of a server has them; empty without one."""
        found = [asdict(one) for one in cloud.scenario.model_server_faults]
        return json.dumps(found) if found else ""

    google = GoogleAccess(
        base_url=cloud.base_url, access_token=cloud.tokens.issue_access_token, id_token=cloud.tokens.issue_id_token
    )
    revisions = SimulatedRevisions(
        clock=cloud.timeline.clock,
        state=cloud.state,
        read_secret=read_secret,
        list_objects=list_objects,
        write_log=write_log,
        may=may,
        version_of=version_of,
        driver_of=driver_of,
        faults=faults,
        google=google,
    )
    fronts = Fronts(authorize=authorizer(cloud), limits=revisions.limits, ready=revisions.ready)
    machines = SimulatedMachines(
        clock=cloud.timeline.clock,
        state=cloud.state,
        base_url=cloud.base_url,
        access_token=google.access_token,
        id_token=google.id_token,
        of_process=cloud.timeline.of_process,
        faults=faults,
    )
    return Runtimes(revisions=revisions, fronts=fronts, machines=machines)


def _payload(cloud: Cloud, name: str) -> str:
    """Return the payload of a secret version. Raises RevisionFailedError if it does not exist or is not enabled."""
    try:
        document = cloud.store.get("secretmanager.versions", version_name(cloud, name)) or {}
    except CloudError as error:
        raise RevisionFailedError(error.message) from None
    if document.get("state") != "ENABLED":
        raise RevisionFailedError(f"Secret Version [{name}] is in {document.get('state', 'unknown')} state.")
    return base64.b64decode(document["_data"]).decode(errors="replace")

"""Models of the services: one module or a few for each API. A module's `handlers(cloud)` maps method ids of the discovery documents to functions."""

from localcloud.rest.call import Handler
from localcloud.services import (
    artifactregistry,
    compute,
    iam,
    logs,
    monitoring,
    projects,
    run,
    secretmanager,
    serviceusage,
    storage,
    tpu,
)
from localcloud.world.cloud import Cloud


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return all modelled methods."""
    found: dict[str, Handler] = {}
    for module in (
        artifactregistry,
        compute,
        iam,
        logs,
        monitoring,
        projects,
        run,
        secretmanager,
        serviceusage,
        storage,
        tpu,
    ):
        found.update(module.handlers(cloud))
    return found

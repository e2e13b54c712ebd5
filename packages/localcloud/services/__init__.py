"""Service models, one or more modules per API. `handlers(cloud)` returns functions by discovery method id."""

from localcloud.rest.call import Handler
from localcloud.services import (
    artifactregistry,
    billing,
    compute,
    compute_instances,
    iam,
    iam_roles,
    kms,
    logs,
    monitoring,
    orgpolicies,
    oslogin,
    price_catalog,
    projects,
    quotas,
    run,
    secretmanager,
    serviceusage,
    storage,
    tpu,
)
from localcloud.world.cloud import Cloud


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return all modeled methods."""
    found: dict[str, Handler] = {}
    for module in (
        artifactregistry,
        billing,
        compute,
        compute_instances,
        iam,
        iam_roles,
        kms,
        logs,
        monitoring,
        orgpolicies,
        oslogin,
        price_catalog,
        projects,
        quotas,
        run,
        secretmanager,
        serviceusage,
        storage,
        tpu,
    ):
        found.update(module.handlers(cloud))
    return found

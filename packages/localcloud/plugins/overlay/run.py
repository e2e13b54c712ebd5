"""Cloud Run services, with GPUs, volumes and Direct VPC egress."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from localcloud.plugins.facts import Recorded
from localcloud.plugins.lifecycle import TypeOverlay
from localcloud.plugins.resource import RestResource, Wait

# Probes of the other kinds are sent as null.
_NULL: Final[Recorded] = {"unset": None, "send_zero": True}
_CONTAINER: Final = "template.containers"


RUN: Final[Mapping[str, TypeOverlay]] = {
    "gcp:cloudrunv2/service:Service": TypeOverlay(
        message="run.v2#GoogleCloudRunV2Service",
        properties={
            "annotations": {"absent": {}},
            "name": {"local": True, "create_only": False},
            f"{_CONTAINER}.livenessProbe.grpc": _NULL,
            f"{_CONTAINER}.livenessProbe.httpGet": _NULL,
            f"{_CONTAINER}.readinessProbe.grpc": _NULL,
            f"{_CONTAINER}.readinessProbe.httpGet": _NULL,
            f"{_CONTAINER}.startupProbe.grpc": _NULL,
            f"{_CONTAINER}.startupProbe.httpGet": _NULL,
            f"{_CONTAINER}.startupProbe.tcpSocket": _NULL,
        },
        lifecycle=partial(
            RestResource,
            noun="Service",
            id_template="projects/{project}/locations/{location}/services/{name}",
            create_query={"serviceId": "{name}"},
            wait=Wait.OPERATION,
            api="run/v2",
            keeps_failed=True,
        ),
    )
}

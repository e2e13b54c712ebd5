"""Cloud Run services, with GPUs, volumes and Direct VPC egress."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from localcloud.plugins.labels import ANNOTATION_FIELDS, LABEL_FIELDS
from localcloud.plugins.lifecycle import Created, OperationContext, ResourceType
from localcloud.plugins.resource import RestResource, Wait
from localcloud.plugins.rest import PluginError
from localcloud.plugins.schema import (
    Json,
    PropertySpec,
    ResourceScope,
    block,
    choice,
    flag,
    last_segment,
    listing,
    number,
    one_listed,
    outputs,
    text,
    texts_by_key,
    whole,
)
from localcloud.plugins.table.common import COMMON
from localcloud.plugins.values import Properties, Value, is_object

_API: Final = "run/v2"
_ITEM: Final = "projects/{project}/locations/{location}/services/{name}"

_GRPC: Final = block({"port": whole(computed=True), "service": text()}, unset=None, send_zero=True)
_HTTP_HEADERS: Final = listing(block({"name": text(required=True), "value": text(send_zero=True, default="")}))


def _http_get(*, headers: bool = True) -> PropertySpec:
    fields: dict[str, PropertySpec] = {"path": text(default="/"), "port": whole(computed=True)}
    if headers:
        fields["httpHeaders"] = _HTTP_HEADERS
    # `httpGet` is null where the probe is of another kind; the recordings show the same for its siblings.
    return block(fields, unset=None, send_zero=True)


_TIMING: Final[Mapping[str, PropertySpec]] = {
    "failureThreshold": whole(default=3),
    "periodSeconds": whole(default=10),
    "timeoutSeconds": whole(default=1),
}

_LIVENESS: Final = block(
    {
        **_TIMING,
        "initialDelaySeconds": whole(),
        "httpGet": _http_get(),
        "grpc": _GRPC,
        "tcpSocket": block({"port": whole(required=True)}),
    }
)
_READINESS: Final = block(
    {
        "failureThreshold": whole(default=3),
        "periodSeconds": whole(default=10),
        "timeoutSeconds": whole(default=1),
        "httpGet": _http_get(headers=False),
        "grpc": _GRPC,
    }
)
_STARTUP: Final = block(
    {
        **_TIMING,
        "initialDelaySeconds": whole(),
        "httpGet": _http_get(),
        "grpc": _GRPC,
        "tcpSocket": block({"port": whole(computed=True)}, unset=None, send_zero=True),
    },
    computed=True,
)

_ENV: Final = block(
    {
        "name": text(required=True),
        "value": text(),
        "valueSource": block({"secretKeyRef": block({"secret": text(required=True), "version": text()})}),
    }
)

_PORT: Final = block({"name": text(computed=True), "containerPort": whole()})


def _ports_to_json(value: Value, _scope: ResourceScope) -> Json:
    """The API takes a list, of which a container has one."""
    return [{name: cast("Json", each) for name, each in value.items() if each}] if is_object(value) else None


def _ports_from_json(raw: Json) -> Value:
    if not isinstance(raw, list) or not raw or not isinstance(raw[0], dict):
        return None
    return {"name": str(raw[0].get("name") or ""), "containerPort": cast("Value", raw[0].get("containerPort"))}


_CONTAINER: Final = block(
    {
        "name": text(computed=True),
        "image": text(required=True),
        "commands": listing(text(), api="command"),
        "args": listing(text()),
        "envs": choice(_ENV, api="env"),
        "resources": block(
            {"limits": texts_by_key(computed=True), "cpuIdle": flag(), "startupCpuBoost": flag()},
            computed=True,
        ),
        "ports": block(_PORT.fields, computed=True, encode=_ports_to_json, decode=_ports_from_json),
        "volumeMounts": listing(
            block({"name": text(required=True), "mountPath": text(required=True), "subPath": text()})
        ),
        "workingDir": text(),
        "livenessProbe": _LIVENESS,
        "readinessProbe": _READINESS,
        "startupProbe": _STARTUP,
        "dependsOns": listing(text(), api="dependsOn"),
        "baseImageUri": text(),
    }
)

_VOLUME: Final = block(
    {
        "name": text(required=True),
        "secret": block(
            {
                "secret": text(required=True),
                "defaultMode": whole(),
                "items": listing(block({"path": text(required=True), "version": text(), "mode": whole()})),
            }
        ),
        "cloudSqlInstance": block({"instances": choice(text())}),
        "emptyDir": block({"medium": text(), "sizeLimit": text()}),
        "gcs": block({"bucket": text(required=True), "readOnly": flag(), "mountOptions": listing(text())}),
        "nfs": block({"server": text(required=True), "path": text(required=True), "readOnly": flag()}),
    }
)

_TEMPLATE: Final = block(
    {
        "revision": text(),
        "labels": texts_by_key(),
        "annotations": texts_by_key(),
        "scaling": block({"minInstanceCount": whole(), "maxInstanceCount": whole()}, computed=True),
        "vpcAccess": block(
            {
                "connector": text(),
                "egress": text(computed=True),
                "networkInterfaces": listing(
                    block(
                        {
                            "network": text(computed=True, same=last_segment),
                            "subnetwork": text(computed=True, same=last_segment),
                            "tags": listing(text()),
                        }
                    ),
                    computed=True,
                ),
            }
        ),
        "timeout": text(computed=True),
        "serviceAccount": text(computed=True),
        "containers": listing(_CONTAINER),
        "volumes": listing(_VOLUME),
        "executionEnvironment": text(computed=True),
        "encryptionKey": text(),
        "maxInstanceRequestConcurrency": whole(computed=True),
        "serviceMesh": block({"mesh": text()}),
        "sessionAffinity": flag(),
        "healthCheckDisabled": flag(),
        "nodeSelector": block({"accelerator": text(required=True)}),
        "gpuZonalRedundancyDisabled": flag(),
    },
    required=True,
)

_CONDITION: Final = block(
    {
        name: text()
        for name in (
            "executionReason",
            "lastTransitionTime",
            "message",
            "reason",
            "revisionReason",
            "severity",
            "state",
            "type",
        )
    }
)


_FIELDS: Final[Mapping[str, PropertySpec]] = {
    **COMMON,
    **LABEL_FIELDS,
    **ANNOTATION_FIELDS,
    "name": text(autoname=True, force_new=True, local=True),
    "location": text(required=True, force_new=True, local=True),
    "description": text(),
    "client": text(),
    "clientVersion": text(),
    "ingress": text(computed=True),
    "launchStage": text(computed=True),
    "binaryAuthorization": block({"useDefault": flag(), "policy": text(), "breakglassJustification": text()}),
    "customAudiences": listing(text()),
    "defaultUriDisabled": flag(),
    "deletionProtection": flag(local=True, default=True),
    "iapEnabled": flag(computed=True),
    "invokerIamDisabled": flag(),
    "scaling": block(
        {
            "minInstanceCount": whole(),
            "maxInstanceCount": whole(),
            "scalingMode": text(),
            "manualInstanceCount": whole(),
        },
        computed=True,
    ),
    "template": _TEMPLATE,
    "traffics": listing(
        block({"type": text(), "revision": text(), "percent": whole(), "tag": text()}),
        api="traffic",
        computed=True,
    ),
    **outputs(
        conditions=listing(_CONDITION),
        createTime=text(),
        creator=text(),
        deleteTime=text(),
        etag=text(),
        expireTime=text(),
        generation=text(),
        lastModifier=text(),
        latestCreatedRevision=text(),
        latestReadyRevision=text(),
        observedGeneration=text(),
        reconciling=flag(),
        terminalConditions=block({}, api="terminalCondition", decode=one_listed),
        trafficStatuses=listing(
            block({name: text() for name in ("revision", "tag", "type", "uri")} | {"percent": number()})
        ),
        uid=text(),
        updateTime=text(),
        uri=text(),
        urls=listing(text()),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Service(RestResource):
    """A service: an ordinary resource that is protected from deletion unless the program says otherwise."""

    async def read(self, context: OperationContext, resource_id: str, given: Properties) -> Created | None:
        """GET, and the properties that are part of the id."""
        found = await RestResource.read(self, context, resource_id, given)
        if found is not None:
            pieces = resource_id.split("/")
            found.state.update({"project": pieces[1], "location": pieces[3], "name": pieces[5]})
        return found

    async def delete(self, context: OperationContext, resource_id: str, state: Properties) -> None:
        """Refuse where the service is protected."""
        if state.get("deletionProtection") is True:
            raise PluginError(
                "cannot destroy service without setting deletion_protection=false and running `pulumi up`"
            )
        await RestResource.delete(self, context, resource_id, state)


RUN: Final = (
    ResourceType(
        type_name="gcp:cloudrunv2/service:Service",
        fields=_FIELDS,
        lifecycle=Service(
            noun="Service",
            fields=_FIELDS,
            collection=f"{_API}/projects/{{project}}/locations/{{location}}/services",
            item=f"{_API}/{_ITEM}",
            id_template=_ITEM,
            create_query={"serviceId": "{name}"},
            wait=Wait.OPERATION,
            operations=_API,
            keeps_failed=True,
        ),
    ),
)

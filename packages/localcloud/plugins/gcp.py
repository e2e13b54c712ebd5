"""Stand-in for the `gcp` provider: the table of resource types behind the provider protocol."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from localcloud.plugins import facts, labels
from localcloud.plugins.checking import DEFAULTS_KEY, CheckReply, Failure, Naming, check
from localcloud.plugins.diffing import Difference, compare
from localcloud.plugins.inputs import from_state, predicted, refreshed, secret_paths, with_kept_defaults
from localcloud.plugins.lifecycle import (
    CreatedResource,
    Locks,
    OperationContext,
    PluginSettings,
    ReadReply,
    ResourceType,
    UpdateRequest,
)
from localcloud.plugins.overlay import OVERLAYS, resource_type
from localcloud.plugins.package_schema import FunctionSpec, package_schema
from localcloud.plugins.rest import PluginError, Rest, RestError, RestTransport
from localcloud.plugins.schema import Object, PropertySpec, PropertySpecs, ValueKind
from localcloud.plugins.values import UNKNOWN, Path, Properties, Value, has_unknown, is_list, is_object, text_of

VERSION: Final = "10.2.0"

_FORBIDDEN: Final = 403
_NOT_ENABLED: Final = "accessNotConfigured"
"""The only reason that the real provider tolerates (IsApiNotEnabledError of google/transport/transport.go, hashicorp/terraform-provider-google):
that of an entry of `errors`, which Google does not send with every SERVICE_DISABLED."""

_HONOURED: Final = frozenset(
    {"project", "region", "defaultLabels", "addPulumiAttributionLabel", "userProjectOverride", "billingProject"}
)

# Deleted before they are replaced, regardless of their name, by a setting of the real provider.
_DELETED_FIRST: Final = frozenset({"gcp:projects/iAMMember:IAMMember"})


class GcpProvider:
    """The `gcp` package. `transport` leads to the local cloud."""

    name = "gcp"
    version = VERSION

    def __init__(
        self,
        transport: RestTransport,
        *,
        token: str | None = None,
        environment: Mapping[str, str] | None = None,
        speed: float = 1.0,
    ) -> None:
        self._environment = os.environ if environment is None else environment
        self.token = token or self._environment.get("GOOGLE_OAUTH_ACCESS_TOKEN")
        self.rest = Rest(transport, token=self.token, speed=speed)
        self._locks = Locks()

    def schema(self) -> Object:
        """Return the package's schema."""
        settings = _HONOURED | facts.settings_without_effect()
        resources = {token: resource_type(token).fields for token in sorted(OVERLAYS)}
        return package_schema(self.name, self.version, settings, resources, _FUNCTIONS)

    def check_config(self, news: Properties) -> tuple[Failure, ...]:
        """Reject configuration unless it has an effect here or is known to be harmless."""
        failures: list[Failure] = []
        for name in news:
            if name not in _HONOURED | facts.settings_without_effect() and not name.endswith("CustomEndpoint"):
                known = ", ".join(sorted(_HONOURED))
                reason = f"the local gcp stand-in does not support the provider setting {name!r}. Supported: {known}"
                failures.append(Failure(path=name, reason=reason))
        return tuple(failures)

    def configure(self, configuration: Properties) -> "GcpSession":
        """Return a session. Project and region come from the configuration, then from the environment, as in the real provider."""
        default_labels = _parsed(configuration.get("defaultLabels"))
        settings = PluginSettings(
            project=text_of(configuration, "project")
            or self._first("GOOGLE_PROJECT", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT"),
            region=text_of(configuration, "region")
            or self._first("GOOGLE_REGION", "GCLOUD_REGION", "CLOUDSDK_COMPUTE_REGION"),
            default_labels={name: str(value) for name, value in default_labels.items()}
            if is_object(default_labels)
            else {},
            attribution=_parsed(configuration.get("addPulumiAttributionLabel")) is not False,
        )
        # Without both, the real provider names a project for few resources, and none that the login can use: hashicorp/terraform-provider-google#20459.
        overrides = _parsed(configuration.get("userProjectOverride")) is True
        rest = self.rest.counted_for(text_of(configuration, "billingProject")) if overrides else self.rest
        return GcpSession(context=OperationContext(rest=rest, settings=settings, locks=self._locks))

    def _first(self, *names: str) -> str:
        return next((value for name in names if (value := self._environment.get(name))), "")


def _parsed(value: Value) -> Value:
    """Return a configuration value. Values other than texts are JSON."""
    if not isinstance(value, str):
        return value
    try:
        return cast("Value", json.loads(value))
    except ValueError:
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpSession:
    """The configured provider."""

    context: OperationContext

    def check(self, type_name: str, news: Properties, olds: Mapping[str, Value], naming: Naming) -> CheckReply:
        """Check inputs and set defaults."""
        return check(type_name, resource_type(type_name).fields, news, olds, naming)

    def diff(self, type_name: str, state: Properties, news: Properties) -> Difference:
        """Compare the state with new inputs, as the real provider does."""
        entry = resource_type(type_name)
        details = compare(entry.fields, state, news)
        for family in labels.families(entry.fields):
            if not has_unknown(news.get(family.written)):
                details.update(labels.differences(family, self.context.settings, state, news))
        if entry.foresee is not None:
            details = entry.foresee(details, state, news)
        difference = Difference(details=details)
        return Difference(details=details, delete_first=difference.replaces and _has_fixed_name(entry, news))

    def preview_create(self, type_name: str, inputs: Properties) -> Properties:
        """Return the inputs, with unknowns for values that the service will choose."""
        entry = resource_type(type_name)
        state = predicted(entry.fields, inputs)
        if self.context.settings.project and state.get("project") is UNKNOWN:
            state["project"] = self.context.settings.project
        return {**state, **labels.predict(entry.fields, self.context.settings, inputs, {})}

    def preview_update(self, type_name: str, state: Properties, news: Properties) -> Properties:
        """Return the state with the new inputs. Computed properties that change are unknown."""
        entry = resource_type(type_name)
        after = dict(state)
        for name, each in entry.fields.items():
            if each.output:
                continue
            if name in news:
                after[name] = news[name]
            elif not each.computed:
                after.pop(name, None)
        for name in self.diff(type_name, state, news).changed:
            if name in entry.fields and entry.fields[name].output:
                after[name] = UNKNOWN
        return {**after, **labels.predict(entry.fields, self.context.settings, news, state)}

    async def create(self, type_name: str, inputs: Properties, *, limit_s: float) -> CreatedResource:
        """Create a resource."""
        return await resource_type(type_name).lifecycle.create(self.context.limited(limit_s), _bare(inputs))

    async def read(self, type_name: str, resource_id: str, inputs: Properties, state: Properties) -> ReadReply | None:
        """Read a resource. A read without inputs is an import."""
        entry = resource_type(type_name)
        created = await entry.lifecycle.read(self.context, resource_id, state if inputs else {})
        if created is None:
            return None
        if inputs:
            drifted = self.diff(type_name, created.state, inputs).changed
            return ReadReply(created=created, inputs=refreshed(entry.fields, inputs, created.state, drifted))
        imported = with_kept_defaults(entry.fields, created.state)
        return ReadReply(
            created=CreatedResource(id=created.id, state=imported), inputs=from_state(entry.fields, imported)
        )

    async def update(
        self, type_name: str, resource_id: str, state: Properties, news: Properties, *, limit_s: float
    ) -> CreatedResource:
        """Send exactly the changes that `diff` finds."""
        changed = self.diff(type_name, state, news).changed
        wanted = UpdateRequest(id=resource_id, state=state, inputs=_bare(news), changed=changed)
        return await resource_type(type_name).lifecycle.update(self.context.limited(limit_s), wanted)

    async def delete(self, type_name: str, resource_id: str, state: Properties, *, limit_s: float) -> None:
        """Delete a resource, unless `deletionPolicy` is ABANDON or PREVENT."""
        policy = text_of(state, "deletionPolicy")
        if policy == "ABANDON":
            return
        if policy == "PREVENT":
            raise PluginError(
                f"cannot destroy {type_name} {resource_id!r}: its deletionPolicy is PREVENT. Set it to DELETE and run `pulumi up` first"
            )
        await resource_type(type_name).lifecycle.delete(self.context.limited(limit_s), resource_id, state)

    async def invoke(self, function: str, arguments: Properties) -> Properties:
        """Answer a data source."""
        found = _FUNCTIONS.get(function)
        if found is None:
            raise PluginError(
                f"the local gcp stand-in does not support the function {function}. Supported: {', '.join(sorted(_FUNCTIONS))}"
            )
        for name in sorted(arguments.keys() - found.arguments.keys()):
            supported = f"Supported: {', '.join(found.arguments)}"
            raise PluginError(
                f"the local gcp stand-in does not support the argument {name!r} of {function}. {supported}"
            )
        return await found.answer(self.context, arguments)

    def secret_paths(self, type_name: str) -> frozenset[Path]:
        """Return the paths of a type's state that are always secret."""
        return secret_paths(resource_type(type_name).fields)


def _bare(inputs: Properties) -> Properties:
    return {name: value for name, value in inputs.items() if name != DEFAULTS_KEY}


def _has_fixed_name(entry: ResourceType, news: Mapping[str, Value]) -> bool:
    """Return whether the program itself set a resource's name, changed or not. Two such resources might not be able to coexist."""
    defaults = news.get(DEFAULTS_KEY)
    chosen = defaults if is_list(defaults) else []
    named = (name for name, each in entry.fields.items() if each.autoname)
    return entry.type_name in _DELETED_FIRST or any(name in news and name not in chosen for name in named)


async def _client_config(context: OperationContext, arguments: Properties) -> Properties:
    del arguments
    settings = context.settings
    return {
        "id": settings.project,
        "project": settings.project,
        "region": settings.region,
        "zone": "",
        "defaultLabels": dict(settings.default_labels),
    }


async def _project(context: OperationContext, arguments: Properties) -> Properties:
    project = text_of(arguments, "projectId") or context.settings.project
    body = await context.rest.get(f"cloudresourcemanager/v1/projects/{project}")
    await _read_billing(context, project)
    found = {
        "projectId": str(body.get("projectId", project)),
        "number": str(body.get("projectNumber", "")),
        "name": str(body.get("name", "")),
    }
    return {**found, "id": f"projects/{found['projectId']}"}


async def _read_billing(context: OperationContext, project: str) -> None:
    """Request the billing account of a project, as the real provider does after reading it."""
    try:
        await context.rest.get(f"cloudbilling/v1/projects/{project}/billingInfo")
    except RestError as error:
        if error.status != _FORBIDDEN or error.reason != _NOT_ENABLED:
            raise


async def _in_region(context: OperationContext, arguments: Properties, *, kind: str) -> Properties:
    """List Compute Engine's resources of a kind in a region."""
    scope = context.scope(arguments)
    path = f"projects/{scope.project}/regions/{scope.region}/{kind}"
    return {"id": path, kind: cast("Value", (await context.rest.get(f"compute/compute/v1/{path}")).get("items", []))}


_TEXT: Final = PropertySpec(kind=ValueKind.TEXT)
_TEXTS_BY_KEY: Final = PropertySpec(kind=ValueKind.TEXTS_BY_KEY)
_OF_A_REGION: Final[PropertySpecs] = {"project": _TEXT, "region": _TEXT}


# Lists have no type in the schema.
_FUNCTIONS: Final[Mapping[str, FunctionSpec]] = {
    "gcp:compute/getRouters:getRouters": FunctionSpec(partial(_in_region, kind="routers"), _OF_A_REGION, {"id": _TEXT}),
    "gcp:compute/getSubnetworks:getSubnetworks": FunctionSpec(
        partial(_in_region, kind="subnetworks"), _OF_A_REGION, {"id": _TEXT}
    ),
    "gcp:organizations/getClientConfig:getClientConfig": FunctionSpec(
        _client_config, {}, dict.fromkeys(("id", *_OF_A_REGION, "zone"), _TEXT) | {"defaultLabels": _TEXTS_BY_KEY}
    ),
    "gcp:organizations/getProject:getProject": FunctionSpec(
        _project, {"projectId": _TEXT}, dict.fromkeys(("id", "name", "number", "projectId"), _TEXT)
    ),
}

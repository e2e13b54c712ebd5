"""Keep the start of a deployed service: a default that has changed since then does not change the service. Only a failed start is repeated."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.resource_types import SERVICE_TYPE
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.stacks.deployed.home_region import Resources

GRAPHS_VOLUME: Final = "graphs"
"""Volume of a service with `cloudRun.compileCache: bucket`."""
_FAILED: Final = "CONDITION_FAILED"
"""State of a service whose newest revision did not start (discovery: run.v2, GoogleCloudRunV2Condition.state)."""
_AFTER_FAILURE: Final = "gemma-serving/after-failure-of"
"""Annotation with the name of a revision that did not start. It makes the next one, if nothing else changes."""
NEW_NETWORK: Final = (
    "The service gets its own network, through which it loads its weights faster. After a teardown, Google holds the subnetwork for up to two "
    "hours, at no cost. `cloudRun.directVpc: false` avoids both."
)


def with_deployed_start(settings: Settings, resources: Resources) -> Settings:
    """Return the settings with what the deployed service has for `cloudRun.directVpc` and `cloudRun.compileCache`, if they set neither value.

    `resources`: those of the stack's own state.
    """
    run, template = settings.cloud_run, as_mapping(_deployed_service(resources).get("template"))
    if run is None or not template:
        return settings
    volumes = {as_mapping(each).get("name") for each in as_sequence(template.get("volumes"))}
    kept = replace(
        run,
        direct_vpc=bool(template.get("vpcAccess")) if run.direct_vpc is None else run.direct_vpc,
        compile_cache=run.compile_cache or ("bucket" if GRAPHS_VOLUME in volumes else "off"),
    )
    return replace(settings, cloud_run=kept)


def annotations_of(resources: Resources) -> Mapping[str, str]:
    """Return the annotations of the service's next revision: the deployed ones, with the newest revision if the service failed."""
    service = _deployed_service(resources)
    kept = {
        key: str(value) for key, value in as_mapping(as_mapping(service.get("template")).get("annotations")).items()
    }
    states = {as_mapping(each).get("state") for each in as_sequence(service.get("terminalConditions"))}
    newest, ready = service.get("latestCreatedRevision"), service.get("latestReadyRevision")
    if not newest or newest == ready or _FAILED not in states:
        return kept
    return {**kept, _AFTER_FAILURE: str(newest).rpartition("/")[2]}


def start_lines(by_file: Settings, kept: Settings, resources: Resources, stack: str) -> Iterator[str]:
    """Yield what a new network means, or a line for each value that the deployed service keeps and that differs from the default.

    `kept`: the settings with the service's values.
    """
    before, after = by_file.service, kept.service
    if before is None or after is None:
        return
    if not _deployed_service(resources):
        if after.direct_vpc:
            yield NEW_NETWORK
        return
    for key, default, value in (
        ("directVpc", before.direct_vpc, after.direct_vpc),
        ("compileCache", before.compile_cache, after.compile_cache),
    ):
        if default != value:
            wanted = str(default).lower()
            command = f"pulumi config set --path gemma-serving:cloudRun.{key} {wanted} --stack {stack}"
            yield f"The service keeps cloudRun.{key}: {str(value).lower()}, which the file does not set; the default is now {wanted}: `{command}`."


def _deployed_service(resources: Resources) -> Mapping[str, object]:
    """Return the outputs of the deployed service; empty without one."""
    services = (as_mapping(each) for each in resources.values() if as_mapping(each).get("type") == SERVICE_TYPE)
    return next((as_mapping(each.get("outputs")) for each in services), as_mapping(None))

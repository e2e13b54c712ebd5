"""Keep the start of a deployed server: a default that has changed since then does not change the server. Only a failed start is repeated."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from gemma_serving.contracts.compile_cache import ARCHIVE_METADATA_KEY
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.resource_types import CAPACITY_TYPE, SERVICE_TYPE
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
    """Return the settings with what the deployed server has for `compileCache` and `cloudRun.directVpc`, if they do not set the value.

    `resources`: those of the stack's own state. A TPU VM whose run ended is in it, too.
    """
    tpu = settings.tpu
    capacity = _deployed(resources, CAPACITY_TYPE)
    if tpu is not None and capacity and tpu.compile_cache is None:
        has_archive = ARCHIVE_METADATA_KEY in as_mapping(capacity.get("metadata"))
        return replace(settings, tpu=replace(tpu, compile_cache="bucket" if has_archive else "machine"))
    run = settings.cloud_run
    template = as_mapping(_deployed(resources, SERVICE_TYPE).get("template"))
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
    service = _deployed(resources, SERVICE_TYPE)
    kept = {
        key: str(value) for key, value in as_mapping(as_mapping(service.get("template")).get("annotations")).items()
    }
    states = {as_mapping(each).get("state") for each in as_sequence(service.get("terminalConditions"))}
    newest, ready = service.get("latestCreatedRevision"), service.get("latestReadyRevision")
    if not newest or newest == ready or _FAILED not in states:
        return kept
    return {**kept, _AFTER_FAILURE: str(newest).rpartition("/")[2]}


def start_lines(by_file: Settings, kept: Settings, resources: Resources, stack: str) -> Iterator[str]:
    """Yield what a new network means, or a line for each value that the deployed server keeps and that differs from the default.

    `kept`: the settings with the server's values.
    """
    service = kept.service
    if service is not None and not _deployed(resources, SERVICE_TYPE):
        if service.direct_vpc:
            yield NEW_NETWORK
        return
    noun = "TPU VM" if service is None else "service"
    defaults = _values(by_file)
    for key, value in _values(kept).items():
        if value != defaults[key]:
            wanted = str(defaults[key]).lower()
            command = f"pulumi config set --path gemma-serving:{key} {wanted} --stack {stack}"
            yield f"The {noun} keeps {key}: {str(value).lower()}, which the file does not set; the default is now {wanted}: `{command}`."


def _values(settings: Settings) -> Mapping[str, object]:
    """Return by its key what a deployed server keeps."""
    run, tpu = settings.service, settings.capacity
    if run is not None:
        return {"cloudRun.directVpc": run.direct_vpc, "cloudRun.compileCache": run.compile_cache}
    return {} if tpu is None else {"tpu.compileCache": tpu.compile_cache}


def _deployed(resources: Resources, type_: str) -> Mapping[str, object]:
    """Return the outputs of the deployed resource of a type; empty without one."""
    found = (as_mapping(each) for each in resources.values() if as_mapping(each).get("type") == type_)
    return next((as_mapping(each.get("outputs")) for each in found), as_mapping(None))

"""Keep the start of a deployed service: a default that has changed since then does not change the service."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.resource_types import SERVICE_TYPE
from gemma_serving.planning.settings.cloud_run import CloudRunSettings
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.stacks.deployed.home_region import Resources

GRAPHS_VOLUME: Final = "graphs"
"""Volume of a service with `cloudRun.compileCache: bucket`."""


def with_deployed_start(settings: Settings, resources: Resources) -> Settings:
    """Return the settings with what the deployed service has for `cloudRun.directVpc` and `cloudRun.compileCache`, if they set neither value.

    `resources`: those of the stack's own state.
    """
    run = settings.cloud_run
    services = (as_mapping(each) for each in resources.values() if as_mapping(each).get("type") == SERVICE_TYPE)
    template = next((as_mapping(as_mapping(each.get("outputs")).get("template")) for each in services), None)
    if run is None or not template:
        return settings
    volumes = {as_mapping(each).get("name") for each in as_sequence(template.get("volumes"))}
    kept = replace(
        run,
        direct_vpc=bool(template.get("vpcAccess")) if run.direct_vpc is None else run.direct_vpc,
        compile_cache=run.compile_cache or ("bucket" if GRAPHS_VOLUME in volumes else "off"),
    )
    return replace(settings, cloud_run=kept)


def kept_lines(before: CloudRunSettings | None, after: CloudRunSettings | None, stack: str) -> Iterator[str]:
    """Yield a line for each value that the service keeps and that differs from the default. `before`: with the default, `after`: with the service's."""
    if before is None or after is None:
        return
    for key, default, kept in (
        ("directVpc", before.direct_vpc, after.direct_vpc),
        ("compileCache", before.compile_cache, after.compile_cache),
    ):
        if default != kept:
            value = str(default).lower()
            command = f"pulumi config set --path gemma-serving:cloudRun.{key} {value} --stack {stack}"
            yield f"The service keeps cloudRun.{key}: {str(kept).lower()}, which the file does not set; the default is now {value}: `{command}`."

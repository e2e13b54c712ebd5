"""The home region of a stack: that of its bucket, its first image repository and, on Cloud Run, its service.

It is the first region of the settings at the first deployment. It stays while a move would replace a service or a bucket, or
restart the server of a machine, whose document names the image in that repository.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.resource_types import BUCKET_TYPE, CAPACITY_TYPE, SERVICE_TYPE
from gemma_serving.planning.settings.stack import Settings

_REPOSITORY_TYPE: Final = "gcp:artifactregistry/repository:Repository"

Resources = Mapping[str, object]
"""The resources in a stack's own state by URN, each with its `type` and `outputs`; empty for a new stack."""


class _Place(NamedTuple):
    project: str
    region: str


def home_region(settings: Settings, stack: str, resources: Resources) -> str:
    """Return the home region. Raises CommandRefusedError if the settings move the service, the bucket with weights or the TPU VM.

    A TPU VM is moved by another project only; the provider judges its zone.
    """
    service = _place(resources, SERVICE_TYPE, "vllm") if settings.cloud_run is not None else None
    own_bucket = settings.uses_bucket and settings.bucket.existing is None
    bucket = _place(resources, BUCKET_TYPE, "models") if own_bucket else None
    weights = bucket if settings.weights == "bucket" else None
    held = {"service": service, "bucket with the weights": weights, "TPU VM": _other_project(settings, resources)}
    moved = {
        noun: place
        for noun, place in held.items()
        if place is not None and (place.project != settings.project or place.region not in settings.regions)
    }
    if moved:
        raise CommandRefusedError(_refusal(settings, stack, moved))
    if settings.tpu is None:
        return settings.regions[0]
    has_machine = any(as_mapping(each).get("type") == CAPACITY_TYPE for each in resources.values())
    home = bucket or (_place(resources, _REPOSITORY_TYPE, "image") if has_machine else None)
    return home.region if home else settings.regions[0]


def _place(resources: Resources, type_: str, name: str) -> _Place | None:
    for urn, resource in resources.items():
        item = as_mapping(resource)
        outputs = as_mapping(item.get("outputs"))
        if item.get("type") == type_ and urn.rpartition("::")[2] == name and outputs.get("location"):
            return _Place(project=str(outputs.get("project")), region=str(outputs["location"]).lower())
    return None


def _other_project(settings: Settings, resources: Resources) -> _Place | None:
    """Return the place of the TPU VM or its request if it is in another project than the settings name."""
    machines = (as_mapping(each) for each in resources.values() if as_mapping(each).get("type") == CAPACITY_TYPE)
    known = (
        as_mapping(each.get("outputs")).get("project") or as_mapping(each.get("inputs")).get("project")
        for each in machines
    )
    projects = (str(project or settings.project) for project in known)
    return next((_Place(project=project, region="") for project in projects if project != settings.project), None)


def _refusal(settings: Settings, stack: str, moved: Mapping[str, _Place]) -> str:
    place, run = next(iter(moved.values())), settings.cloud_run
    if place.project != settings.project:
        what, back = (
            f'project "{settings.project}"',
            f"use project {place.project} (gcp:project or GOOGLE_CLOUD_PROJECT)",
        )
        where = f"project {place.project}"
    elif run is not None:
        what, back = f'gemma-serving:cloudRun.region = "{run.region}"', f"set cloudRun.region: {place.region}"
        where = place.region
    else:
        zones = ", ".join(settings.tpu.zones if settings.tpu else ())
        what, back = f"gemma-serving:tpu.zones = [{zones}]", f"add a zone in {place.region}"
        where = place.region
    stage = "`gemma stage_model NEW`, " if settings.weights == "bucket" else ""
    return (
        f"{what}: stack {stack} is deployed in {where}, and another place would replace its {' and its '.join(moved)}. "
        f"Nothing was changed. To stay, {back}. To move, copy Pulumi.{stack}.yaml to Pulumi.NEW.yaml, run {stage}`gemma up NEW`, switch "
        f"the clients, then run `gemma teardown {stack}`."
    )

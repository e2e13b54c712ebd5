"""A model of the collector: which targets a configuration scrapes, and under which labels Google stores the series.

The same for the container of a Cloud Run revision and that of a machine:

- Each pipeline of metrics with the exporter `googlemanagedprometheus` exports what its `prometheus` receivers scrape: `job_name`,
  `scrape_interval`, `metrics_path`, `authorization.credentials`, `static_configs` with labels, `metric_relabel_configs`.
- Processors: `resourcedetection` with the detector gcp, `resource`, `groupbyattrs`, and `transform` with
  `set(attributes["A"], resource.attributes["B"])`; `batch` and `memory_limiter` change no label. With any other processor nothing is stored,
  because its effect is unknown.

The resource's labels follow the exporter (GoogleCloudPlatform/opentelemetry-operations-go 03a1d7b,
exporter/collector/googlemanagedprometheus/monitoredresource.go).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import yaml

from localcloud.json_values import JsonObject, as_list, as_object

_EXPORTER: Final = "googlemanagedprometheus"
_DEFAULT_INTERVAL_S: Final = 60.0
"""Prometheus' default of `scrape_interval`."""
_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")
_SET: Final = re.compile(r'set\((?:datapoint\.)?attributes\["([^"]+)"\],\s*resource\.attributes\["([^"]+)"\]\)')
_TARGET_KEYS: Final[Mapping[str, Sequence[str]]] = {
    "location": ("location", "cloud.availability_zone", "cloud.region"),
    "cluster": ("cluster", "k8s.cluster.name"),
    "namespace": ("namespace", "k8s.namespace.name"),
    "job": ("service.name",),
    "instance": ("service.instance.id",),
}
"""Labels of the resource prometheus_target, with the attributes that they are read from, in order."""


class CollectorConfigError(Exception):
    """The collector does not start, or this model does not know what it would store. The message is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One address that a collector scrapes. `labels` are set before the relabelling, `resource` after it."""

    host: str
    port: int
    path: str
    interval_s: float
    labels: Mapping[str, str]
    relabel: Sequence[JsonObject]
    token: str = ""
    """Bearer token of `authorization.credentials`; empty without one."""
    resource: Mapping[str, str] = field(default_factory=dict[str, str])


def targets(text: str, detected: Mapping[str, str]) -> list[Target]:
    """Return the targets of a configuration. `detected` are the attributes of the detector gcp. Raises CollectorConfigError."""
    config = _parsed(text)
    service = as_object(config.get("service"))
    found: list[Target] = []
    for name, pipeline in as_object(service.get("pipelines")).items():
        kinds = [_kind(str(item)) for item in as_list(as_object(pipeline).get("exporters"))]
        if _kind(name) == "metrics" and _EXPORTER in kinds:
            found += _of_pipeline(config, as_object(pipeline), detected)
    if not found:
        raise CollectorConfigError(f"No pipeline of metrics has a prometheus receiver and the exporter {_EXPORTER}.")
    return found


def _parsed(text: str) -> JsonObject:
    try:
        config: object = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CollectorConfigError(f"The collector's configuration is not YAML: {error}") from None
    if not as_object(config):
        raise CollectorConfigError("The collector's configuration is not a YAML mapping.")
    return as_object(config)


def _kind(name: str) -> str:
    """Return the type of a component: `resource/labels` is a `resource`."""
    return name.partition("/")[0]


def _of_pipeline(config: JsonObject, pipeline: JsonObject, detected: Mapping[str, str]) -> Iterator[Target]:
    processors = [str(item) for item in as_list(pipeline.get("processors"))]
    for receiver in (str(item) for item in as_list(pipeline.get("receivers"))):
        if _kind(receiver) != "prometheus":
            continue
        settings = _component(config, "receivers", receiver)
        for job in map(as_object, as_list(as_object(settings.get("config")).get("scrape_configs"))):
            for target in _of_job(job):
                yield _processed(target, config, processors, detected)


def _component(config: JsonObject, section: str, name: str) -> JsonObject:
    components = as_object(config.get(section))
    if name not in components:
        raise CollectorConfigError(f"A pipeline names {name}, which is not in {section}.")
    return as_object(components[name])


def _of_job(job: JsonObject) -> Iterator[Target]:
    for group in map(as_object, as_list(job.get("static_configs"))):
        for address in map(str, as_list(group.get("targets"))):
            host, _, port = address.rpartition(":")
            if not port.isdigit():
                raise CollectorConfigError(f"The target {address} has no port.")
            labels = {str(name): str(value) for name, value in as_object(group.get("labels")).items()}
            yield Target(
                host=host,
                port=int(port),
                path=str(job.get("metrics_path") or "/metrics"),
                interval_s=_seconds(job.get("scrape_interval")),
                labels={**labels, "job": str(job.get("job_name") or ""), "instance": labels.get("instance", address)},
                relabel=[as_object(item) for item in as_list(job.get("metric_relabel_configs"))],
                token=str(as_object(job.get("authorization")).get("credentials") or ""),
            )


def _seconds(given: object) -> float:
    found = _DURATION.fullmatch(str(given)) if given else None
    if given and not (found and any(found.groups())):
        raise CollectorConfigError(f"scrape_interval {given} is not a duration such as 30s.")
    if found is None:
        return _DEFAULT_INTERVAL_S
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds


def _processed(target: Target, config: JsonObject, names: Sequence[str], detected: Mapping[str, str]) -> Target:
    """Return the target with the labels that the pipeline's processors and the exporter produce."""
    # The receiver moves `job` and `instance` of a series to the resource.
    labels = {name: value for name, value in target.labels.items() if name not in {"job", "instance"}}
    attributes = {"service.name": target.labels["job"], "service.instance.id": target.labels["instance"]}
    for name in names:
        _apply(name, _component(config, "processors", name), labels, attributes, detected)
    resource = {
        label: next((attributes[key] for key in keys if attributes.get(key)), "")
        for label, keys in _TARGET_KEYS.items()
    }
    project = attributes.get("gcp.project.id") or detected.get("cloud.account.id", "")
    stored = {"project_id": project, **{label: value for label, value in resource.items() if value}}
    return replace(target, labels=labels, resource=stored)


def _apply(
    name: str, settings: JsonObject, labels: dict[str, str], attributes: dict[str, str], detected: Mapping[str, str]
) -> None:
    """Change a series' own labels and its resource's attributes as one processor does."""
    match _kind(name):
        case "resourcedetection":
            attributes |= detected if "gcp" in as_list(settings.get("detectors")) else {}
        case "resource":
            for action in map(as_object, as_list(settings.get("attributes"))):
                _act(action, attributes)
        case "groupbyattrs":
            keys = {str(key) for key in as_list(settings.get("keys"))}
            attributes |= {key: labels.pop(key) for key in keys & labels.keys()}
        case "transform":
            labels |= {found[1]: attributes.get(found[2], "") for found in _statements(name, settings)}
        case "batch" | "memory_limiter":
            return
        case _:
            raise CollectorConfigError(f"This model lacks the processor {name}.")


def _act(action: JsonObject, attributes: dict[str, str]) -> None:
    key, what = str(action.get("key")), str(action.get("action"))
    value = attributes.get(str(action["from_attribute"])) if "from_attribute" in action else str(action.get("value"))
    if what == "delete":
        attributes.pop(key, None)
    elif what not in {"insert", "update", "upsert"}:
        raise CollectorConfigError(f"This model lacks the action {what} of the processor resource.")
    elif value is not None and (what == "upsert" or (key in attributes) == (what == "update")):
        attributes[key] = value


def _statements(name: str, settings: JsonObject) -> Iterator["re.Match[str]"]:
    groups = as_list(settings.get("metric_statements"))
    for statement in (each for group in groups for each in as_list(as_object(group).get("statements")) or [group]):
        found = _SET.fullmatch(str(statement).strip())
        if found is None:
            raise CollectorConfigError(f"This model lacks the statement {statement} of {name}.")
        yield found

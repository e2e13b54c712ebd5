"""Cloud Run's messages about a revision that did not start.

The operation and the conditions only state that the container failed. The container's output, and why Cloud Run terminated it, are entries of
Cloud Logging. Sources, all public: issues and incident reports of GoogleCloudPlatform and others, 2024 to 2026, that quote whole messages
(googlecodelabs/feedback #1696, #1814, #1825; terraform-google-modules/terraform-docs-samples #254; 1Password/scim-examples #309; the acceptance
tests of hashicorp/terraform-provider-google, resource_cloud_run_v2_service_test.go).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote

from localcloud.json_values import JsonObject, as_list, as_object

Stream: TypeAlias = Literal["stdout", "stderr", "varlog/system"]
DEFAULT_PORT: Final = 8080
_FILLED_IN_PROBE: Final = {"timeoutSeconds": 240, "periodSeconds": 240, "failureThreshold": 1}
"""Values of the TCP probe that Cloud Run adds to a container without one (cloud.google.com/run/docs/configuring/healthchecks, 2026-11)."""
_CANCELLED, _UNREACHABLE = "CANCELLED", "ERROR_CONNECTION_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One entry of a revision's log. `severity` is empty for the container's output."""

    stream: Stream
    text: str
    severity: str = ""
    container: str = ""
    """Name of the container that the entry is about. Empty for the container's own output."""


def serving_container(template: Mapping[str, Any]) -> JsonObject:
    """Return the container that receives the requests. With sidecars, it is the one that has a port."""
    containers = [as_object(item) for item in as_list(template.get("containers"))] or [{}]
    return next((item for item in containers if item.get("ports")), containers[0])


def container_port(container: Mapping[str, Any]) -> int:
    """Return the port that the container must listen on."""
    ports = [as_object(item) for item in as_list(container.get("ports"))]
    return int(ports[0].get("containerPort") or DEFAULT_PORT) if ports else DEFAULT_PORT


def not_started(template: Mapping[str, Any]) -> str:
    """Return the sentence for a container that did not start, for any cause.

    With a probe in the template it is about the probe, even if the container exited. Without one it is about the port.
    """
    container = serving_container(template)
    if _configured_probe(container):
        cause = "The user-provided container failed the configured startup probe checks."
    else:
        cause = (
            "The user-provided container failed to start and listen on the port defined provided by the "
            f"PORT={container_port(container)} environment variable within the allocated timeout. This can happen when the container port is "
            "misconfigured or if the timeout is too short. The health check timeout can be extended."
        )
    return f"{cause} Logs for this revision might contain more information."


def with_logs_url(sentence: str, revision: str) -> str:
    """Return a sentence with the link to the revision's log, as in operations and conditions."""
    _, project, _, _, _, service, _, short = revision.split("/")
    query = f'resource.type="cloud_run_revision"\nresource.labels.service_name="{service}"\nresource.labels.revision_name="{short}"'
    url = (
        f"https://console.cloud.google.com/logs/viewer?project={project}&resource=cloud_run_revision/service_name/{service}/"
        f"revision_name/{short}&advancedFilter={quote(query, safe='')}"
    )
    guidance = "https://cloud.google.com/run/docs/troubleshooting#container-failed-to-start"
    return f"{sentence}\n\nLogs URL: {url} \nFor more troubleshooting guidance, see {guidance}"


def exited(code: int, template: Mapping[str, Any], *, service: str) -> list[LogLine]:
    """Return the entries for a container that exited before it was ready."""
    return [_system("WARNING", f"Container called exit({code})."), _probe(template, service, 1, _CANCELLED)]


def out_of_memory(limit_mib: int, used_mib: int, template: Mapping[str, Any], *, service: str) -> list[LogLine]:
    """Return the entries for a container that was killed because it exceeded its memory limit."""
    text = (
        f"Memory limit of {limit_mib} MiB exceeded with {used_mib} MiB used. Consider increasing the memory limit, "
        "see https://cloud.google.com/run/docs/configuring/memory-limits"
    )
    return [
        _system("ERROR", text),
        _system("WARNING", "Container terminated on signal 9."),
        _probe(template, service, 1, _CANCELLED),
    ]


def probe_failed(failures: int, template: Mapping[str, Any], *, service: str) -> list[LogLine]:
    """Return the entry for a container that was not ready when the startup probe failed."""
    return [_probe(template, service, failures, _UNREACHABLE)]


def not_mounted(volume: str, reason: str, template: Mapping[str, Any], *, service: str) -> list[LogLine]:
    """Return the entries for a Cloud Storage volume that could not be mounted. The container is never started."""
    return [
        _system("", f"Error: {reason}"),
        _system("WARNING", "Container called exit(255)."),
        _system(
            "ERROR",
            f"terminated: Application failed to run: volume (type: gcs, name: {volume}): mount operation failed",
        ),
        _probe(template, service, 1, _CANCELLED),
    ]


_SET_UP: Final = "mountWithStorageHandle: fs.NewServer: create file system: SetUpBucket: storageLayout call failed"
"""gcsfuse 3.11.3 adds the name of the call and an id to this text of 2026-08."""


def no_such_bucket() -> str:
    """Return gcsfuse's message for a bucket that does not exist."""
    return f"{_SET_UP}: rpc error: code = NotFound desc = The specified bucket does not exist."


def bucket_unreachable() -> str:
    """Return gcsfuse's message for an instance without a way to Cloud Storage. That it ends with a gRPC deadline is assumed."""
    return f"{_SET_UP}: rpc error: code = DeadlineExceeded desc = context deadline exceeded"


def bucket_denied(account: str, bucket: str) -> str:
    """Return gcsfuse's message for a bucket that the revision's account cannot list."""
    return (
        f"{_SET_UP}: rpc error: code = PermissionDenied desc = {account} does not have storage.objects.list access to the "
        f"Google Cloud Storage bucket. Permission 'storage.objects.list' denied on resource '//storage.googleapis.com/projects/_/buckets/{bucket}' "
        "(or it may not exist)."
    )


def _system(severity: str, text: str) -> LogLine:
    return LogLine(stream="varlog/system", text=text, severity=severity)


def _configured_probe(container: Mapping[str, Any]) -> JsonObject:
    """Return the requested startup probe. Empty for Cloud Run's default probe."""
    probe = as_object(container.get("startupProbe"))
    port = as_object(probe.get("tcpSocket")).get("port")
    filled = {"tcpSocket": {"port": port}, **_FILLED_IN_PROBE}
    return {} if port in {None, container_port(container)} and probe == filled else probe


def _probe(template: Mapping[str, Any], service: str, failures: int, status: str) -> LogLine:
    container = serving_container(template)
    name = str(container.get("name") or f"{service.rpartition('/')[2]}-1")
    probe = _configured_probe(container)
    http = as_object(probe.get("httpGet"))
    action = http or as_object(probe.get("tcpSocket"))
    kind = f"{'' if probe else 'Default '}STARTUP {'HTTP' if http else 'TCP'}"
    where = f"port {action.get('port') or container_port(container)}" + (
        f' path "{http.get("path") or "/"}"' if http else ""
    )
    text = (
        f'{kind} probe failed {failures} time{"" if failures == 1 else "s"} consecutively for container "{name}" on {where}. '
        f"The instance was not started.\nConnection failed with status {status}."
    )
    return LogLine(stream="varlog/system", text=text, severity="ERROR", container=name)


def entry(line: LogLine, revision: str) -> JsonObject:
    """Return the LogEntry of a line of `projects/P/locations/L/services/S/revisions/R`."""
    project = revision.split("/")[1]
    labels = {"instanceId": _instance_id(revision), **({"container_name": line.container} if line.container else {})}
    return {
        "logName": f"projects/{project}/logs/{quote(f'run.googleapis.com/{line.stream}', safe='')}",
        "resource": _resource(revision),
        "labels": labels,
        "textPayload": line.text,
        **({"severity": line.severity} if line.severity else {}),
    }


def not_ready_event(message: str, revision: str, *, creating: bool) -> JsonObject:
    """Return the audit entry in which Cloud Run repeats the condition of a failed revision."""
    _, project, _, location, _, _, _, short = revision.split("/")
    name = f"namespaces/{project}/revisions/{short}"
    return {
        "logName": f"projects/{project}/logs/{quote('cloudaudit.googleapis.com/system_event', safe='')}",
        "resource": _resource(revision),
        "severity": "ERROR",
        "protoPayload": {
            "@type": "type.googleapis.com/google.cloud.audit.AuditLog",
            "serviceName": "run.googleapis.com",
            "methodName": f"google.cloud.run.v2.Services.{'CreateService' if creating else 'UpdateService'}",
            "resourceName": name,
            "resourceLocation": {"currentLocations": [location]},
            "status": {
                "code": 9,
                "message": f"Ready condition status changed to False for Revision {short} with message: {message}",
            },
            "response": {"kind": "Revision", "metadata": {"name": short, "namespace": project}},
        },
    }


def _resource(revision: str) -> JsonObject:
    _, project, _, location, _, service, _, short = revision.split("/")
    labels = {
        "project_id": project,
        "location": location,
        "service_name": service,
        "configuration_name": service,
        "revision_name": short,
    }
    return {"type": "cloud_run_revision", "labels": labels}


def _instance_id(revision: str) -> str:
    """Return an instance id; one process represents all instances of a revision."""
    return "00" + revision.encode().hex()[-64:]

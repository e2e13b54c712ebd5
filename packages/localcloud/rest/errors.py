"""Google's errors: one exception with named constructors, and the response body of each API family.

Shapes, from Google's public API documents: google.rpc.Status for most APIs (`code`, `message`, `status`, `details`);
Compute Engine adds a list `errors` of `{message, domain, reason}`; Cloud Storage has that list and no `status`.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from localcloud.json_values import JsonObject


class ErrorStyle(Enum):
    """API family, which determines the shape of an error body."""

    RPC = "rpc"
    COMPUTE = "compute"
    STORAGE = "storage"


def _error(code: int, status: str, reason: str) -> Callable[[str], "CloudError"]:
    """Return the constructor of errors that differ only in their message."""
    return lambda message: CloudError(code, status, message, reason=reason)


def _error_info(reason: str, service: str, consumer: str) -> JsonObject:
    return {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": "googleapis.com",
        "metadata": {"service": service, "consumer": consumer},
    }


_INJECTED: Mapping[int, tuple[str, str]] = {
    403: ("The caller does not have permission", "forbidden"),
    429: ("Resource has been exhausted (e.g. check quota)", "rateLimitExceeded"),
}
"""Message and reason of a scenario's fault by its status."""


class CloudError(Exception):
    """An error response of the local cloud.

    `code` is the HTTP status, `status` the canonical google.rpc.Code name, `reason` the short word in responses of Compute Engine and Cloud Storage.
    With `has_errors`, responses of every family have it. `headers` are further headers of the response.
    """

    def __init__(
        self,
        code: int,
        status: str,
        message: str,
        *,
        reason: str,
        details: Sequence[JsonObject] = (),
        has_errors: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.message = message
        self.reason = reason
        self.details = tuple(details)
        self.has_errors = has_errors
        self.headers = dict(headers or {})

    @classmethod
    def invalid(cls, message: str, *, violations: Sequence[tuple[str, str]] = ()) -> "CloudError":
        """Return 400 INVALID_ARGUMENT. `violations` are pairs of field path and description."""
        details: list[JsonObject] = []
        if violations:
            fields = [{"field": field, "description": text} for field, text in violations]
            details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": fields})
        return cls(400, "INVALID_ARGUMENT", message, reason="invalid", details=details)

    @classmethod
    def field(cls, path: str, message: str) -> "CloudError":
        """Return 400 INVALID_ARGUMENT about one field."""
        return cls.invalid(message, violations=[(path, message)])

    @classmethod
    def denied(cls, message: str, *, details: Sequence[JsonObject] = ()) -> "CloudError":
        """Return 403 PERMISSION_DENIED."""
        return cls(403, "PERMISSION_DENIED", message, reason="forbidden", details=details)

    @classmethod
    def service_disabled(cls, title: str, api: str, number: str, *, has_errors: bool = False) -> "CloudError":
        """Return 403 for an API that is disabled or was just enabled. Google sends the same error in both cases.

        Text and reason from marekaf/gcr-lifecycle-policy#5 and GoogleCloudPlatform/gke-monitoring-tutorial#13. Public answers of 2018 and 2020
        have `errors` (terraform-google-modules/terraform-google-project-factory#79, #421), answers of 2021 to 2025 do not (#719;
        hashicorp/terraform-provider-google#21124).
        """
        service = f"{api}.googleapis.com"
        url = f"https://console.developers.google.com/apis/api/{service}/overview?project={number}"
        return cls(
            403,
            "PERMISSION_DENIED",
            f"{title} has not been used in project {number} before or it is disabled. Enable it by visiting {url} then retry. "
            "If you enabled this API recently, wait a few minutes for the action to propagate to our systems and retry.",
            reason="accessNotConfigured",
            details=[_error_info("SERVICE_DISABLED", service, f"projects/{number}")],
            has_errors=has_errors,
        )

    @classmethod
    def without_quota_project(cls, api: str, consumer: str) -> "CloudError":
        """Return 403 for a user's call without a quota project; `consumer` is the Google project that the login belongs to.

        Text, reason and metadata from pulumi/pulumi-gcp#2896 and golang/oauth2#702.
        """
        service = f"{api}.googleapis.com"
        return cls(
            403,
            "PERMISSION_DENIED",
            f"Your application is authenticating by using local Application Default Credentials. The {service} API requires a quota project, "
            "which is not set by default. To learn how to set your quota project, see "
            "https://cloud.google.com/docs/authentication/adc-troubleshooting/user-creds .",
            reason="accessNotConfigured",
            details=[_error_info("SERVICE_DISABLED", service, f"projects/{consumer}")],
        )

    @classmethod
    def user_project_denied(cls, api: str, project: str) -> "CloudError":
        """Return 403 for a quota project that does not exist or on which the caller lacks serviceusage.services.use.

        Text from google-github-actions/auth#250 and google-github-actions/get-gke-credentials#191.
        """
        return cls(
            403,
            "PERMISSION_DENIED",
            f"Caller does not have required permission to use project {project}. Grant the caller the roles/serviceusage.serviceUsageConsumer role, "
            "or a custom role with the serviceusage.services.use permission, by visiting "
            f"https://console.developers.google.com/iam-admin/iam/project?project={project} and then retry. "
            "Propagation of the new permission may take a few minutes.",
            reason="forbidden",
            details=[_error_info("USER_PROJECT_DENIED", f"{api}.googleapis.com", f"projects/{project}")],
        )

    required = staticmethod(_error(400, "INVALID_ARGUMENT", "required"))
    """A value is missing."""
    precondition = staticmethod(_error(400, "FAILED_PRECONDITION", "failedPrecondition"))
    """The request is valid, but not in this state."""
    in_use = staticmethod(_error(400, "INVALID_ARGUMENT", "resourceInUseByAnotherResource"))
    """Compute Engine's error for a resource that another resource uses."""
    unauthenticated = staticmethod(_error(401, "UNAUTHENTICATED", "required"))
    """The credentials are missing."""
    bad_credentials = staticmethod(_error(401, "UNAUTHENTICATED", "authError"))
    """The credentials are invalid or have expired."""
    not_found = staticmethod(_error(404, "NOT_FOUND", "notFound"))
    already_exists = staticmethod(_error(409, "ALREADY_EXISTS", "alreadyExists"))
    aborted = staticmethod(_error(409, "ABORTED", "conflict"))
    """The resource was changed concurrently."""
    conflict = staticmethod(_error(409, "FAILED_PRECONDITION", "conflict"))
    """Cloud Storage's 409."""
    condition_not_met = staticmethod(_error(412, "FAILED_PRECONDITION", "conditionNotMet"))
    """A condition such as ifGenerationMatch is not met."""
    unimplemented = staticmethod(_error(501, "UNIMPLEMENTED", "notImplemented"))
    """The method exists in Google's API, but the local cloud does not model it."""

    @classmethod
    def injected(cls, code: int) -> "CloudError":
        """Return the error of a scenario's fault."""
        message, reason = _INJECTED.get(code, ("The service is currently unavailable", "backendError"))
        status = _CANONICAL.get(code, "UNKNOWN")
        return cls(code, status, f"{message} (a fault from the local cloud's scenario).", reason=reason)

    def rpc_status(self) -> JsonObject:
        """Return the google.rpc.Status for operations and states; `code` is the canonical number."""
        return {"code": _RPC_NUMBER.get(self.status, 2), "message": self.message}

    def body(self, style: ErrorStyle) -> JsonObject:
        """Return the JSON body of the response."""
        error: JsonObject = {"code": self.code, "message": self.message}
        if style is not ErrorStyle.RPC or self.has_errors:
            error["errors"] = [{"message": self.message, "domain": "global", "reason": self.reason}]
        if style is not ErrorStyle.STORAGE:
            error["status"] = self.status
            if self.details:
                error["details"] = list(self.details)
        return {"error": error}


_CANONICAL = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_RPC_NUMBER = {
    "CANCELLED": 1,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "UNAUTHENTICATED": 16,
}
"""google.rpc.Code numbers, from google/rpc/code.proto."""

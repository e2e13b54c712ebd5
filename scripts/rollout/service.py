"""The Cloud Run service: read it, change its traffic with its etag, delete revisions. Each change waits until it is finished."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from time import monotonic, sleep
from typing import Final, cast

from cloud.google_api import GoogleApi, GoogleListError
from contracts.errors import CommandRefusedError, ScriptError
from contracts.rollout_record import ROLLOUT_ANNOTATION, RolloutRecord, annotations_of
from contracts.service_traffic import Service, TrafficTarget, short_name
from scripts.rollout.decisions import has_traffic

IMAGE_PULL_S: Final = 15 * 60
"""Time to import an image and Cloud Run's overhead around a start, in addition to the start-up budget. Assumed, conservative."""
_WAIT: Final = {"timeout": "30s"}
"""Timeout of one `wait` call for an operation; shorter than the timeout of an HTTP call."""

_PAUSE_S: Final = 2.0


class ServiceChangedError(ScriptError):
    """Another client changed the service since it was read. This run changed nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAtGoogle:
    """One service. `limit_s`: timeout for one change, including the cold start of a revision without instances."""

    api: GoogleApi
    name: str
    limit_s: float

    def read(self) -> Service:
        """Return the service. Raises CommandRefusedError if it does not exist, ScriptError if it cannot be read."""
        try:
            return self.api.get("run", f"v2/{self.name}")
        except GoogleListError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise CommandRefusedError(
                    f"Service {short_name(self.name)} not found. Run `pulumi up` first."
                ) from None
            raise ScriptError(f"Cannot read service {short_name(self.name)}: {error}") from None

    def revisions(self) -> Sequence[Mapping[str, object]]:
        """Return its revisions. Raises ScriptError."""
        try:
            pages = list(self.api.pages("run", f"v2/{self.name}/revisions"))
        except GoogleListError as error:
            raise ScriptError(f"Cannot list the revisions of {short_name(self.name)}: {error}") from None
        return [
            revision
            for page in pages
            for revision in cast("Sequence[Mapping[str, object]]", page.get("revisions") or ())
        ]

    def shift(self, seen: Service, targets: Sequence[TrafficTarget], record: RolloutRecord) -> Service:
        """Set the traffic and the record of the service in one change, and return the service.

        Raises ServiceChangedError, without a change, if the service was changed since it was `seen`. Raises UnansweredError if Google did not
        respond, and ScriptError if it rejected the change.
        """
        traffic = {"traffic": [target.to_api() for target in targets]}
        error = self._patch(seen, traffic, record)
        after = self._settled(targets, record)
        # The operation of a service whose latest revision failed returns an error, even if the traffic was changed.
        if not has_traffic(after, targets):
            raise ScriptError(f"The traffic was not changed: {error or 'Google returned no reason.'}")
        return after

    def note(self, seen: Service, record: RolloutRecord) -> Service:
        """Write only the record, and return the service. Raises as `shift` does."""
        error = self._patch(seen, {}, record)
        after = self.read()
        if annotations_of(after).get(ROLLOUT_ANNOTATION) != record.text():
            raise ScriptError(f"The rollout record was not changed: {error or 'Google returned no reason.'}")
        return after

    def _patch(self, seen: Service, body: Mapping[str, object], record: RolloutRecord) -> str:
        """Change the service, wait, and return the error of the operation; empty if it succeeded."""
        annotations = {**annotations_of(seen), ROLLOUT_ANNOTATION: record.text()}
        whole = {**body, "annotations": annotations, "etag": seen.get("etag")}
        try:
            operation = self.api.patch(
                "run", f"v2/{self.name}", whole, {"updateMask": ",".join([*body, "annotations"])}
            )
        except GoogleListError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise ScriptError(f"Cannot change service {short_name(self.name)}: {error}") from None
            # A retry after a lost response conflicts with the first attempt. The record identifies the change, because another run with the
            # same targets has another id.
            if annotations_of(self.read()).get(ROLLOUT_ANNOTATION) == record.text():
                return ""
            raise ServiceChangedError(
                f"Service {short_name(self.name)} changed during the rollout. Its traffic was not modified."
            ) from None
        return self._error_of(operation)

    def _settled(self, targets: Sequence[TrafficTarget], record: RolloutRecord) -> Service:
        """Return the service when its change is finished. A change whose response was lost has no operation to wait for."""
        end_s = monotonic() + self.limit_s
        while True:
            after = self.read()
            own = annotations_of(after).get(ROLLOUT_ANNOTATION) == record.text()
            if has_traffic(after, targets) or not own or not after.get("reconciling") or monotonic() > end_s:
                return after
            sleep(_PAUSE_S)

    def renew(self, seen: Service, targets: Sequence[TrafficTarget] | None) -> Mapping[str, object]:
        """Request a new revision of the unchanged template and return the operation. `targets`: traffic to set in the same change.

        Raises ServiceChangedError, without a change, if the service was changed since it was `seen`, and ScriptError if Google rejected it.
        """
        traffic = {} if targets is None else {"traffic": [target.to_api() for target in targets]}
        body = {"template": seen.get("template"), **traffic}
        parameters = {"updateMask": ",".join(body), "forceNewRevision": "true"}
        try:
            return self.api.patch("run", f"v2/{self.name}", {**body, "etag": seen.get("etag")}, parameters)
        except GoogleListError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise ScriptError(f"Cannot change service {short_name(self.name)}: {error}") from None
        # A retry after a lost response conflicts with the first attempt, which has created the revision.
        if self.read().get("latestCreatedRevision") != seen.get("latestCreatedRevision"):
            return {"done": True}
        raise ServiceChangedError(
            f"Service {short_name(self.name)} was changed by another client at the same time, so it was not restarted. Run the command again."
        )

    def delete_revision(self, revision: str) -> None:
        """Delete a revision. Raises ScriptError."""
        try:
            operation = self.api.delete("run", f"v2/{self.name}/revisions/{revision}", {})
        except GoogleListError as error:
            raise ScriptError(f"Cannot delete revision {revision}: {error}") from None
        failure = self._error_of(operation)
        if failure:
            raise ScriptError(f"Cannot delete revision {revision}: {failure}")

    def _error_of(self, operation: Mapping[str, object]) -> str:
        """Wait for an operation and return its error; empty if it succeeded."""
        end_s = monotonic() + self.limit_s
        while not operation.get("done"):
            if monotonic() > end_s:
                raise ScriptError(
                    f"The change of {short_name(self.name)} did not finish within {self.limit_s:.0f} s. "
                    "Run the same command again to continue from the current traffic."
                )
            try:
                operation = self.api.post("run", f"v2/{operation.get('name')}:wait", _WAIT)
            except GoogleListError as error:
                raise ScriptError(
                    f"Cannot read the result of the change of {short_name(self.name)} ({error}). "
                    "Run the same command again to continue from the current traffic."
                ) from None
        error = cast("Mapping[str, object]", operation.get("error") or {})
        return str(error.get("message") or "")

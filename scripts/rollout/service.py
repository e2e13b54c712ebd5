"""The service at Google: read it, move its traffic with its etag, delete revisions. Each change waits for its end."""

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

_WAIT: Final = {"timeout": "30s"}
"""How long one `wait` of an operation waits at Google; less than the time limit of a call."""

_PAUSE_S: Final = 2.0


class ServiceChangedError(ScriptError):
    """Another client changed the service since it was read. Nothing was changed here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAtGoogle:
    """One service. `limit_s` is the longest time for one change: a revision without instances starts first."""

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
                    f"Service {short_name(self.name)} does not exist; run `pulumi up` first."
                ) from None
            raise ScriptError(f"Service {short_name(self.name)} could not be read: {error}") from None

    def revisions(self) -> Sequence[Mapping[str, object]]:
        """Return its revisions. Raises ScriptError."""
        try:
            pages = list(self.api.pages("run", f"v2/{self.name}/revisions"))
        except GoogleListError as error:
            raise ScriptError(f"The revisions of {short_name(self.name)} could not be listed: {error}") from None
        return [
            revision
            for page in pages
            for revision in cast("Sequence[Mapping[str, object]]", page.get("revisions") or ())
        ]

    def shift(self, seen: Service, targets: Sequence[TrafficTarget], record: RolloutRecord) -> Service:
        """Give the service this traffic and this record at once, and return it as it is then.

        Raises ServiceChangedError if the service was changed since it was `seen`: then nothing was changed here. Raises UnansweredError if
        Google did not answer, and ScriptError if it refused.
        """
        traffic = {"traffic": [target.to_api() for target in targets]}
        error = self._patch(seen, traffic, record)
        after = self._settled(targets, record)
        # The operation of a service whose latest revision failed says so, although the traffic moved.
        if not has_traffic(after, targets):
            raise ScriptError(f"The traffic was not changed: {error or 'Google answered without a reason.'}")
        return after

    def note(self, seen: Service, record: RolloutRecord) -> Service:
        """Write the record alone, and return the service as it is then. Raises as `shift` does."""
        error = self._patch(seen, {}, record)
        after = self.read()
        if annotations_of(after).get(ROLLOUT_ANNOTATION) != record.text():
            raise ScriptError(
                f"The record of the roll-out was not changed: {error or 'Google answered without a reason.'}"
            )
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
                raise ScriptError(f"Service {short_name(self.name)} could not be changed: {error}") from None
            # A request that was sent twice, because its first answer was lost, conflicts with itself. The record says whose the change is:
            # another run with the same wish has another id.
            if annotations_of(self.read()).get(ROLLOUT_ANNOTATION) == record.text():
                return ""
            raise ServiceChangedError(
                f"Service {short_name(self.name)} was changed by another client in the meantime, so that its traffic was left as it is."
            ) from None
        return self._error_of(operation)

    def _settled(self, targets: Sequence[TrafficTarget], record: RolloutRecord) -> Service:
        """Return the service when it has ended its change: a change whose answer was lost has no operation to wait for."""
        end_s = monotonic() + self.limit_s
        while True:
            after = self.read()
            own = annotations_of(after).get(ROLLOUT_ANNOTATION) == record.text()
            if has_traffic(after, targets) or not own or not after.get("reconciling") or monotonic() > end_s:
                return after
            sleep(_PAUSE_S)

    def delete_revision(self, revision: str) -> None:
        """Delete a revision. Raises ScriptError."""
        try:
            operation = self.api.delete("run", f"v2/{self.name}/revisions/{revision}", {})
        except GoogleListError as error:
            raise ScriptError(f"Revision {revision} could not be deleted: {error}") from None
        said = self._error_of(operation)
        if said:
            raise ScriptError(f"Revision {revision} could not be deleted: {said}")

    def _error_of(self, operation: Mapping[str, object]) -> str:
        """Wait for an operation, and return its error; empty if it succeeded."""
        end_s = monotonic() + self.limit_s
        while not operation.get("done"):
            if monotonic() > end_s:
                raise ScriptError(
                    f"Google has not ended the change of {short_name(self.name)} within {self.limit_s:.0f} s. "
                    "Run the same command again: it goes on from what Google has by then."
                )
            try:
                operation = self.api.post("run", f"v2/{operation.get('name')}:wait", _WAIT)
            except GoogleListError as error:
                raise ScriptError(
                    f"Google did not say how the change of {short_name(self.name)} ended ({error}). "
                    "Run the same command again: it goes on from what Google has by then."
                ) from None
        error = cast("Mapping[str, object]", operation.get("error") or {})
        return str(error.get("message") or "")

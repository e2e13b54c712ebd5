"""Readers of a folder of staged weights: deployments in the states, Cloud Run revisions, settings of stacks."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from cloud.google_api import GoogleApi, answer_of
from contracts.answers import Absent, Present, Unknown
from contracts.errors import CommandRefusedError
from contracts.naming import Names
from contracts.resource_types import SERVICE_TYPE
from contracts.service_traffic import serving_shares, short_name
from contracts.staged_weights import MODELS_FOLDER, folder_uri
from engine.state import StackState
from engine.steps import CAPACITY_TYPES
from scripts.cli.settings import stack_settings
from stacks.parts import parts_of
from stacks.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderUses:
    """Readers of one folder. It can be removed if it is not served and no check failed."""

    served_by: Sequence[str]
    """Deployments and revisions that read it now or at their next start."""
    older: Sequence[str]
    """Revisions without traffic that cannot be restored after the removal."""
    named_by: Sequence[str]
    """Stacks whose settings have it for the next `up`."""
    unknown: Sequence[str]
    """Failed checks, one clause each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Revision:
    name: str
    text: str
    serves: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketReaders:
    """Possible readers of a bucket, read once for all its folders."""

    bucket: str
    states: Sequence[StackState]
    settings: Mapping[str, Settings]
    """Settings by stack, for stacks with a local file."""
    revisions: Sequence[_Revision]
    unknown: Sequence[str]

    def of(self, folder: str) -> FolderUses:
        """Return the readers of a folder."""
        uri = _pattern(folder_uri(self.bucket, folder))
        mounted = re.compile(f"{uri.pattern}|{_pattern(f'{MODELS_FOLDER}/{folder}').pattern}")
        deployed = [f"stack {state.stack}" for state in self.states if self._reads(state, uri, mounted)]
        reading = [one for one in self.revisions if mounted.search(one.text)]
        named = [
            f"Pulumi.{stack}.yaml"
            for stack, settings in self.settings.items()
            if settings.weights == "bucket"
            and settings.bucket_name(stack) == self.bucket
            and folder in _folders(settings)
        ]
        return FolderUses(
            served_by=[*deployed, *(f"revision {one.name}" for one in reading if one.serves)],
            older=[f"revision {one.name}" for one in reading if not one.serves],
            named_by=named,
            unknown=self.unknown,
        )

    def _reads(self, state: StackState, uri: re.Pattern[str], mounted: re.Pattern[str]) -> bool:
        for resource in state.resources:
            text = json.dumps(resource)
            # A machine's own copy has the path of every folder, but a service has only the path in its bucket.
            wanted = mounted if resource.get("type") == SERVICE_TYPE and self.bucket in text else uri
            if resource.get("type") in CAPACITY_TYPES and wanted.search(text):
                return True
        return False


def bucket_readers(
    bucket: str, states: Sequence[StackState], settings: Mapping[str, Settings], api: GoogleApi
) -> BucketReaders:
    """Read the possible readers of a bucket. A failed read makes them unknown, which prevents a removal."""
    unknown = [
        f"the state of stack {state.stack} could not be read"
        for state in states
        if state.status in {"unreadable", "no engine"}
    ]
    revisions: list[_Revision] = []
    for service in sorted(_services(bucket, states, settings)):
        match answer_of("run", lambda service=service: _revisions(api, service, bucket)):
            case Present(value):
                revisions += value
            case Absent():
                pass
            case Unknown(why=why):
                unknown.append(f"the revisions of service {short_name(service)} could not be read: {why.rstrip('.')}")
    return BucketReaders(bucket=bucket, states=states, settings=settings, revisions=revisions, unknown=tuple(unknown))


def settings_of(stacks: Sequence[str]) -> Mapping[str, Settings]:
    """Return the settings of the stacks whose files can be read. Others cannot be deployed and have no folder."""
    found: dict[str, Settings] = {}
    for stack in stacks:
        try:
            found[stack] = stack_settings(stack)
        except CommandRefusedError:
            continue
    return found


def _folders(settings: Settings) -> frozenset[str | None]:
    """Return the folders that a stack's settings name: of its model, drafter and adapters."""
    return frozenset({settings.weights_prefix, *(part.folder for part in parts_of(settings))})


def _services(bucket: str, states: Sequence[StackState], settings: Mapping[str, Settings]) -> Iterator[str]:
    for stack, known in settings.items():
        if known.cloud_run is not None and known.bucket_name(stack) == bucket:
            base = Names(project=known.project, stack=stack).base
            yield f"projects/{known.project}/locations/{known.cloud_run.region}/services/{base}"
    for state in states:
        for resource in state.resources:
            if resource.get("type") == SERVICE_TYPE and bucket in json.dumps(resource):
                yield str(resource.get("id") or "")


def _revisions(api: GoogleApi, service: str, bucket: str) -> Sequence[_Revision]:
    """Return the revisions of a service that read the bucket. Raises GoogleListError."""
    document = api.get("run", f"v2/{service}")
    names = {short_name(document.get(key)) for key in ("latestReadyRevision", "latestCreatedRevision")}
    names |= set(serving_shares(document))
    traffic = cast("Sequence[Mapping[str, object]]", document.get("traffic") or ())
    names |= {str(entry.get("revision") or "") for entry in traffic}
    listed = [
        revision
        for page in api.pages("run", f"v2/{service}/revisions")
        for revision in cast("Sequence[Mapping[str, object]]", page.get("revisions") or ())
    ]
    texts = {short_name(revision.get("name")): json.dumps(revision) for revision in listed}
    return [_Revision(name=name, text=text, serves=name in names) for name, text in texts.items() if bucket in text]


def _pattern(path: str) -> re.Pattern[str]:
    """Return a pattern for a path and everything below it, but not for other paths with the same prefix."""
    return re.compile(rf"{re.escape(path)}(?![\w.-])")

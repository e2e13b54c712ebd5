"""Preparation of a document's image, weights and secrets while the old server still serves."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from contracts.guest_attributes import FETCHING_WEIGHTS, PULLING_IMAGE
from contracts.serving_document import API_KEY_VARIABLE, ServingDocument
from vm_agent.base import ServingError, SupersededError, log
from vm_agent.cloud import MetadataClient
from vm_agent.compile_cache import CompiledPrograms
from vm_agent.containers import pull, remove_image
from vm_agent.ending import RUN_ENDS, RunEnd
from vm_agent.follow import Assignment, LatestDocument
from vm_agent.kept import IMAGE_KIND, KeptState, fetched_by
from vm_agent.known_secrets import KnownSecrets
from vm_agent.metadata_guard import MetadataGuard
from vm_agent.prefetch import HubFetch
from vm_agent.publishing import PhasePublisher
from vm_agent.trial import Trials
from vm_agent.weights import WeightsCopy, remove_copy


@dataclass
class Preparation:
    """Fetcher of the files that documents need. Deletes files that none needs any more."""

    metadata: MetadataClient
    latest: LatestDocument
    publisher: PhasePublisher
    kept: KeptState
    secrets: KnownSecrets
    trial: Trials
    run_end: RunEnd
    programs: CompiledPrograms
    guard: MetadataGuard

    def run(self, assignment: Assignment) -> "tuple[dict[str, str], bool]":
        """Prepare. Raises ServingError if the change's or the run's time is over, SupersededError if a newer document has arrived."""

        def cancelled() -> bool:
            over = self.trial.is_over_budget(assignment) or self.run_end.is_soon()
            return over or self.latest.is_newer_than(assignment.version)

        prepared: tuple[dict[str, str], bool] | None = None
        with suppress(SupersededError):
            prepared = self._fetched(assignment, cancelled)
        if self.latest.is_newer_than(assignment.version):
            raise SupersededError
        if self.run_end.is_soon():
            raise ServingError(RUN_ENDS, retry=False)
        if prepared is None or cancelled():
            raise self.trial.over_budget()
        return prepared

    def _fetched(self, assignment: Assignment, cancelled: Callable[[], bool]) -> "tuple[dict[str, str], bool]":
        """Pull the image and fetch the weights. Return the secrets' values by variable name, and whether the models are on the machine."""
        document, is_back, back = assignment.document, assignment.failed is not None, self.kept.back
        self.kept.note_fetched(document)
        if self.trial.is_trial(assignment):
            self.remove_others(document)

        def progress(phase: str) -> Callable[[str], None]:
            assignment.publish(self.publisher, phase)
            return lambda detail: assignment.publish(self.publisher, phase, detail)

        restored = self.programs.restore_beside(document)
        pull(
            self.metadata,
            document.image,
            progress=progress(PULLING_IMAGE),
            cancelled=cancelled,
            keep_local=is_back,
        )
        for copied in document.copies:
            self._copy_weights(WeightsCopy(self.metadata, copied, progress(FETCHING_WEIGHTS), cancelled), is_back)
        secrets = {
            name: self.secrets.read(secret, is_back=is_back, is_api_key=name == API_KEY_VARIABLE)
            for name, secret in document.secret_environment.items()
        }
        self.programs.wait_for(restored, cancelled)
        if back is None or not self.trial.is_trial(assignment):
            return secrets, True
        fetch = HubFetch(
            document,
            secrets,
            lambda detail: assignment.publish(self.publisher, FETCHING_WEIGHTS, detail),
            cancelled,
            options=self.guard.fetch_options()[0],
        )
        return secrets, fetch.run(back.document)

    def remove_others(self, document: ServingDocument) -> None:
        """Delete images and weights that this agent fetched for documents other than this one and the rollback documents."""
        documents = (document, *(kept.document for kept in self.kept.documents()))
        needed = {name for one in documents for name in fetched_by(one)}
        for name, kind in tuple(self.kept.fetched.items()):
            if name not in needed and (remove_image(name) if kind == IMAGE_KIND else remove_copy(name, needed)):
                del self.kept.fetched[name]
        self.kept.write()

    @staticmethod
    def _copy_weights(copy: WeightsCopy, is_back: bool) -> None:
        try:
            copy.run()
        except ServingError as error:
            if not is_back:
                raise
            log(f"Starting the last known good document with the weights on this machine: {error}")

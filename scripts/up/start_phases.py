"""Phases of a Cloud Run server's start, read from Cloud Logging while the engine waits for the revision."""

import re
import threading
from typing import Final

from gemma_serving.cloud import google_api
from gemma_serving.cloud.clock import GOOGLE_CLOCK
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.guest_attributes import READY
from gemma_serving.contracts.log_phases import phase_in
from gemma_serving.contracts.masking import LineMask
from gemma_serving.contracts.server_errors import LOGGER
from gemma_serving.contracts.stack_facts import StackFacts
from gemma_serving.contracts.three_answers import Present
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.cli.command import print_progress
from gemma_serving.scripts.logs.api import SERVES, follow, log_of

PERIOD_S: Final = 3.0
"""Polling interval in seconds: 20 reads per minute, of the 60 that Cloud Logging allows per project (2026-11)."""
_SERVICE: Final = re.compile(r": (creating|updating)[\w ]* gcp:cloudrunv2:Service ")
"""Step of the engine that waits for a revision (`engine.events`)."""


class StartPhases:
    """The newest phase, read in a thread: a slow response must not stop the engine's own progress."""

    def __init__(self, facts: StackFacts, settings: Settings) -> None:
        """Prepare the reads, which begin with the step of the service."""
        self._log = log_of(facts.stack, settings)
        self._former = facts.server.value.running if isinstance(facts.server, Present) else None
        self._ended = threading.Event()
        self._reader: threading.Thread | None = None
        self._newest = self._problem = ""

    def during(self, step: str) -> str:
        """Return the newest phase with its line; empty for another step. Prints once that the log cannot be read."""
        if _SERVICE.search(step) is None:
            return ""
        if self._reader is None:
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()
        if self._problem:
            print_progress("up", f"the phases of the start are not shown. {self._problem}")
            self._problem = ""
        return self._newest

    def close(self) -> None:
        """End the reads."""
        self._ended.set()

    def _read(self) -> None:
        log, phase, since = self._log, "", GOOGLE_CLOCK.now()
        try:
            for line in follow(google_api.connect(log.project), log, since, LineMask(), say=_pass, pause=_pass):
                if line is None:
                    if self._ended.wait(PERIOD_S):
                        return
                elif line.where == self._former:
                    continue  # the server of before
                elif SERVES in line.text:
                    self._newest = READY
                elif found := phase_in(line.text, phase):
                    phase = found
                    self._newest = f"{phase}: {LOGGER.sub('', line.text)}"
        except ScriptError as error:
            self._problem = str(error)


def _pass(_: object) -> None:
    """Neither report a failed read nor pause: the next read is after PERIOD_S."""

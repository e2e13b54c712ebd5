"""What the agent tells the outside: the server's log read for phases, guest attributes written without secrets."""

import re
import subprocess
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone

from components.tpu_vm.agent.base import CONTAINER, log
from components.tpu_vm.agent.cloud import BROKEN, Metadata

DETAIL_LIMIT_BYTES = 2048
# vLLM's own words (GPU and TPU builds), matched without regard to case, the first match counts.
LOG_PHASES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("", re.compile(r"Initializing a V\d|args: |_config=|Namespace\(")),  # lists of settings mention everything
    (
        "compiling",
        re.compile(
            r"\bcompiling|pre-?compil|compilation|torch\.compile|captur\w* .*graph|graph captur|warm(ing)?[ -]?up",
            re.IGNORECASE,
        ),
    ),
    ("fetching weights", re.compile(r"fetching \d+ files|download\w* .*(weights|model|shards)", re.IGNORECASE)),
    ("loading", re.compile(r"load\w* .*(model|weights|checkpoint|shards)", re.IGNORECASE)),
)
# Shapes of tokens that must never be published, whoever printed them.
TOKEN_SHAPES = re.compile(r"hf_[A-Za-z0-9]{8,}|ya29\.[\w.-]+|(?<=[Bb]earer )\S+|eyJ[\w-]{10,}\.[\w-]+\.[\w-]+")


@dataclass
class LogFollower:
    """Reads the container's log as it grows: keeps the last lines and derives the phase from vLLM's own words."""

    phase: str = "loading"
    detail: str = ""
    lines: deque[str] = field(default_factory=lambda: deque[str](maxlen=60))
    _process: subprocess.Popen[str] | None = None
    _reader: threading.Thread | None = None

    def start(self) -> None:
        """Follow the log from its last 200 lines on."""
        argv = ["docker", "logs", "-f", "--tail=200", CONTAINER]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        self._process = process
        self._reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            self.take(line.rstrip())

    def take(self, line: str) -> None:
        """Take one line of the log. Within one start, `compiling` is never left for an earlier phase."""
        self.lines.append(line)
        for phase, pattern in LOG_PHASES:
            if pattern.search(line):
                if phase and (phase == "compiling" or self.phase != "compiling"):
                    self.phase = phase
                    self.detail = line[-200:]
                return

    def finish(self, *, last_words_s: float = 0.0) -> tuple[str, ...]:
        """Stop following; return the last lines. A container that has just ended may still have something to say."""
        if self._process:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(last_words_s)
            self._process.kill()
            self._process.wait()
        if self._reader:
            self._reader.join(5)
        return tuple(self.lines)


@dataclass
class Publisher:
    """Tells the phase through guest attributes; secrets are removed from what it says."""

    metadata: Metadata
    heartbeat_s: float = 60.0
    progress_s: float = 2.0
    secrets: set[str] = field(default_factory=set[str])
    told: dict[str, str] = field(default_factory=dict[str, str])
    _said: tuple[str, str, str] = ("starting", "", "")
    _told_at: float = 0.0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def clean(self, text: str) -> str:
        """Remove the secrets that were read here and whatever looks like a token; keep the end, at most 2 KiB."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "[removed]")
        text = TOKEN_SHAPES.sub("[removed]", text)
        return text.encode(errors="replace")[-DETAIL_LIMIT_BYTES:].decode(errors="ignore")

    def tell(self, phase: str, text_hash: str, detail: str = "") -> None:
        """Publish a phase. A reader never sees a new hash together with the phase of the document before it."""
        with self._lock:
            self._said = (phase, text_hash, detail)
            if self.told.get("document-hash") != text_hash:
                self._put("phase", "starting")
                self._put("document-hash", text_hash)
            detail = self.clean(detail)
            news = self.told.get("phase") != phase
            pause_s = self.heartbeat_s if self.told.get("detail") == detail else self.progress_s
            if not news and time.monotonic() - self._told_at < pause_s:
                return
            if news:
                log(f"Document {text_hash[:12] or '(none)'}: {phase}.")
            self._put("detail", detail)
            self._put("phase", phase)
            now = datetime.now(timezone.utc)  # noqa: UP017 - datetime.UTC came with Python 3.11
            self._put("updated-at", now.isoformat(timespec="milliseconds").replace("+00:00", "Z"))
            self._told_at = time.monotonic()

    def repeat(self) -> None:
        """Say the last thing again: as a sign of life, or because progress came too fast the first time."""
        self.tell(*self._said)

    def _put(self, key: str, value: str) -> None:
        if self.told.get(key) == value:
            return
        try:
            self.metadata.publish(key, value)
            self.told[key] = value
        except BROKEN as error:  # told again the next time
            log(f"Guest attribute {key} was not written ({error}); it needs metadata enable-guest-attributes=TRUE.")

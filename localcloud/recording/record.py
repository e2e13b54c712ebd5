"""`localcloud record`: run a command with a recorder between it and Google."""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from localcloud.child import run_child
from localcloud.json_values import JsonObject, as_object
from localcloud.plugins import serve as serve_providers
from localcloud.recording.endpoints import Endpoints, variables
from localcloud.recording.placeholders import Kind, Placeholders
from localcloud.recording.proxy import Proxy
from localcloud.recording.recordings import RecordedExchange, RecordingWriter
from localcloud.recording.redaction import Redactor

_PROJECTS: Final = ("GOOGLE_CLOUD_PROJECT", "GOOGLE_PROJECT", "GCLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")
_SECRETIVE: Final = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIALS|API_?KEY|PRIVATE_?KEY")
_FILES: Final = ("PULUMI_CONFIG_PASSPHRASE_FILE", "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE", "GOOGLE_APPLICATION_CREDENTIALS")
_CREDENTIAL_FIELDS: Final = {
    "private_key": Kind.KEY,
    "private_key_id": Kind.KEY,
    "client_id": Kind.KEY,
    "client_secret": Kind.SECRET,
    "refresh_token": Kind.TOKEN,
    "project_id": Kind.PROJECT,
    "quota_project_id": Kind.PROJECT,
}
_MOST_FILE_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """What to record. `upstream` stands in Google's place; `replaced` are further texts to replace."""

    out: Path
    command: Sequence[str]
    upstream: str | None = None
    replaced: Sequence[str] = ()


class _Keeper:
    """Writes each exchange without what it must not hold, and at the end all of them again with all that became known."""

    def __init__(self, placeholders: Placeholders, writer: RecordingWriter) -> None:
        self._placeholders = placeholders
        self._redactor = Redactor(placeholders)
        self._writer = writer
        self._lines: list[JsonObject] = []
        self.without_answer = 0

    def keep(self, exchange: RecordedExchange) -> None:
        line = self._redactor.exchange(exchange).as_json()
        self._lines.append(line)
        self.without_answer += exchange.status == 0
        self._writer.add(line)

    def learn_token(self, token: str) -> None:
        self._placeholders.learn(Kind.TOKEN, token)

    def finish(self) -> int:
        self._writer.finish(
            self._redactor.again(line) for line in sorted(self._lines, key=lambda line: str(line["time"]))
        )
        return len(self._lines)


async def record(options: RecordOptions, environment: Mapping[str, str]) -> int:
    """Run the command, keep its exchanges, and return its exit code. Raises RecordingError if the file cannot be made."""
    placeholders = Placeholders(secrets=known_secrets(environment, options.replaced))
    writer = RecordingWriter(options.out, speed=_speed(environment, options.upstream))
    keeper = _Keeper(placeholders, writer)
    proxy = Proxy(
        endpoints=Endpoints.of(environment, options.upstream), keep=keeper.keep, learn_token=keeper.learn_token
    )
    try:
        async with proxy.open() as base_url, AsyncExitStack() as stack:
            child = {**environment, **variables(base_url, environment)}
            if "gcp:" in environment.get("PULUMI_DEBUG_PROVIDERS", ""):
                # The stand-ins of `localcloud run` know the local cloud only; these send to the recorder.
                ports = await stack.enter_async_context(
                    serve_providers(
                        base_url,
                        token=environment.get("GOOGLE_OAUTH_ACCESS_TOKEN"),
                        environment=environment,
                        speed=float(environment.get("LOCALCLOUD_SPEED", "1")),
                    )
                )
                child["PULUMI_DEBUG_PROVIDERS"] = ports.debug_providers
            return await run_child(options.command, child)
    finally:
        count = keeper.finish()
        print(_summary(options.out, count, placeholders, keeper.without_answer, proxy.refused), file=sys.stderr)


def known_secrets(environment: Mapping[str, str], replaced: Sequence[str] = ()) -> Iterator[tuple[Kind, str]]:
    """Yield what the environment and its credential files hold and no recording may."""
    for name in _PROJECTS:
        yield Kind.PROJECT, environment.get(name, "")
    yield Kind.PERSON, environment.get("CLOUDSDK_CORE_ACCOUNT", "")
    for name, value in environment.items():
        if _SECRETIVE.search(name) and "/" not in value[:1]:
            yield (Kind.TOKEN if "TOKEN" in name else Kind.SECRET), value
    for name in _FILES:
        yield from _in_file(environment.get(name, ""))
    for text in replaced:
        yield Kind.TEXT, text


def _in_file(name: str) -> Iterator[tuple[Kind, str]]:
    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8") if name and path.stat().st_size <= _MOST_FILE_BYTES else ""
    except (OSError, UnicodeDecodeError):
        return
    try:
        document = as_object(json.loads(text))
    except ValueError:
        yield Kind.SECRET, text.strip()
        return
    for key, kind in _CREDENTIAL_FIELDS.items():
        yield kind, str(document.get(key) or "")


def _speed(environment: Mapping[str, str], upstream: str | None) -> float:
    """Return the speed of what answers: that of the local cloud, or 1 for Google."""
    local = environment.get("LOCALCLOUD_URL", "")
    root = Endpoints.of(environment, upstream).roots["run"]
    return float(environment.get("LOCALCLOUD_SPEED", "1")) if local and root.startswith(local) else 1.0


def _summary(out: Path, count: int, placeholders: Placeholders, without_answer: int, refused: int) -> str:
    counts = ", ".join(f"{number} x {kind.value}" for kind, number in placeholders.counts().items()) or "nothing"
    parts = [f"localcloud: kept {count} exchanges in {os.fspath(out)}, replaced by placeholders: {counts}"]
    if without_answer:
        parts.append(f"{without_answer} exchanges had no answer")
    if refused:
        parts.append(f"{refused} requests that were not the command's were refused")
    return "; ".join(parts) + "."

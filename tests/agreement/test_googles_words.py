"""Readers of Google's refusals advise on quota, capacity or roles only for words that the table knows; other words they show as new."""

import ast
import asyncio
import json
import random
import re
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace

import pulumi
import pytest
from google.api_core.exceptions import from_http_status

from gcp_tpu_provider import refusals as provider_words
from gcp_tpu_provider.http_transport import google_error
from gcp_tpu_provider.refusals import API_OFF, DENIED, UNKNOWN_WORDS, Refusal, kind, meanings, read, rows
from gcp_tpu_provider.tests.cloud import FakeTpu
from gcp_tpu_provider.tests.harness import Aborted, FakeEngine, wanted
from gcp_tpu_provider.transport import Pacing
from gemma_serving.cloud import alerts
from gemma_serving.cloud.clock import SPEED_VARIABLE
from gemma_serving.cloud.google_api import answer_of
from gemma_serving.cloud.google_session import GoogleListError
from gemma_serving.cloud.secret_values import read_secret
from gemma_serving.cloud.server_logs import why_unread
from gemma_serving.cloud.shortage import shortage
from gemma_serving.cloud.staging.bucket import storage_errors
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.masking import masked
from gemma_serving.contracts.three_answers import Unknown
from gemma_serving.engine.runner import own_words
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.doctor.diagnosis import Checkup
from gemma_serving.stacks.google_project.propagation import NewGrants, _Waits
from gemma_serving.stacks.hooks.run_failures import FailureReport
from tests.laws import examples
from tests.stacks.failed_start import failed_start

ROOT = Path(__file__).parents[2]
NEW = Refusal(meaning=UNKNOWN_WORDS).advice()
CODES = (400, 401, 403, 404, 408, 409, 410, 412, 413, 416, 429, 499, 500, 501, 502, 503, 504)
THINGS = ("quota", "capacity", "permission", "role", "image", "disk", "runtime version", "secret version")
OTHERS = ("upstream registry", "billing account", "service agent", "service account", "reservation", "policy", "zone")
SAYINGS = ("was not found here", "is being deleted", "is forbidden for now", "denied the request", "has been exhausted")
ADVICE = re.compile(
    r"(?i)quota|capacity|\brole|permission|iam-policy|had not taken|dockerHub|add zones|`zones`|Version`"
)
"""What a reader's own words must not name."""
REPORT = FailureReport(start=failed_start(), service="s", secrets=[], grants=NewGrants(newest_s=0.0))
RESOURCES = {"alerts-idle": "gcp:monitoring/alertPolicy:AlertPolicy", "image": "gcp:a/r:R", "models": "gcp:s/b:B"}


def drawn(status):
    chance = random.Random(status)  # noqa: S311 - drawn alike in each run
    for _ in range(examples(test=5, part=100, night=1_000)):
        parts = [f"the {chance.choice(THINGS + OTHERS)} {chance.choice(SAYINGS)}" for _ in range(chance.randint(1, 3))]
        yield " and ".join(parts).capitalize()


def refusing(status, words):
    def refuse(*_, **__):
        raise GoogleListError(status, words)

    return SimpleNamespace(get=refuse)


def provider(status, words):
    error = google_error(status, json.dumps({"error": {"message": words, "status": "CODE"}}), None, "p")
    with pytest.raises(Aborted) as ended:
        FakeEngine(FakeTpu(refusals=dict.fromkeys(("us-east5-a", "us-east5-b"), error)), Pacing()).up(wanted())
    return ended.value.message.replace("All capacity requests were deleted.", "")


def hooks(status, words):
    """Return the warnings of all hooks after Google's words, which the engine prints."""
    said, waits = [f"googleapi: Error {status}: {words}"], _Waits("p")
    with pytest.MonkeyPatch.context() as patched:
        for level in ("warn", "error"):
            patched.setattr(pulumi.log, level, said.append)
        patched.setattr(pulumi, "get_stack", lambda: "x")
        patched.setenv(SPEED_VARIABLE, "1e6")
        for name, type_ in RESOURCES.items():
            asyncio.run(waits.again(pulumi.ErrorHookArgs("urn", "", name, type_, errors=said[:1])))
        if kind(words) == UNKNOWN_WORDS:
            asyncio.run(REPORT.handle(pulumi.ErrorHookArgs("urn", "", "vllm", "t", errors=said[:1])))
    return " ".join(said)


def log(status, words):
    return why_unread("p", status=status, reason="", said=words)


def doctor(status, words):
    state = StackState(stack="x", status="missing")
    checkup = Checkup(project="p", google=refusing(status, words), member="user:a", state=state)
    (line,) = checkup.calling("c", "compute", "roles/compute.viewer", lambda: checkup.google.get("compute")).lines()
    return f"{line.detail} {line.fix}"


def staging(status, words):
    with pytest.raises(ScriptError) as raised, storage_errors("b"):
        raise from_http_status(status, words)
    return str(raised.value)


def secret(status, words):
    with pytest.raises(ScriptError) as raised:
        read_secret("projects/p/secrets/s/versions/1", project="p", api=refusing(status, words))
    return str(raised.value)


def assistant(status, words):
    """Return the cause of a failed request and the unread alerts, as in the assistant's documents."""
    cause = shortage("FAILED", words, ()).sentence.replace("no quota of this request is known", "")
    answer = answer_of("monitoring", refusing(status, words).get)
    return f"{cause} {alerts._unread('alerts', 'p', answer) if isinstance(answer, Unknown) else ''}"


READERS = {
    provider: {401, *(status for status in CODES if status >= HTTPStatus.INTERNAL_SERVER_ERROR)},  # end the search
    hooks: (),
    log: (),
    doctor: (),
    staging: {412},  # each write names the state that it expects
    secret: (),
    assistant: (),
}
"""Each reader, and the statuses that decide whatever the words are."""
ROLES = {doctor: "roles/compute.viewer", secret: "roles/secretmanager.secretAccessor", log: "roles/logging.viewer"}


@pytest.mark.law
@pytest.mark.parametrize(("reader", "decided"), READERS.items(), ids=[reader.__name__ for reader in READERS])
def test_unknown_words_are_shown_and_called_new_and_get_no_advice(reader, decided):
    for status in CODES:
        for words in drawn(status):
            assert kind(words) == UNKNOWN_WORDS
            text = reader(status, words)
            assert status in decided or (words in text and NEW in text)
            assert not ADVICE.search(text.replace(words, "")), text


@pytest.mark.parametrize("row", [row for _, row in rows() if row["service"] != "gcp-tpu"], ids=lambda row: row["words"])
def test_each_reader_knows_the_words_of_each_row(row):
    assert masked(row["words"]) == row["words"]
    status = max(row["code"], HTTPStatus.BAD_REQUEST)
    for reader in (reader for reader, decided in READERS.items() if status not in decided):
        text = reader(status, row["words"])
        assert row["words"][:20] in text or row["meaning"] == API_OFF, reader
        assert NEW not in text, reader
        assert (ROLES.get(reader, "no role") in text) == (reader in ROLES and row["meaning"] in DENIED), reader


OF_PROGRAMS = {"enableExternalIps": "no machine of a stack has an external address", "enable-oslogin": "a metadata key"}
OTHER_VERBS = {"refresh", "state", "plugin", "stack", "package", "preview"}
"""Commands of Pulumi for which `gemma` has none."""


def test_what_gemma_prints_of_a_refusal_names_only_keys_of_the_settings():
    schema = json.loads((ROOT / "docs" / "settings.schema.json").read_text())
    tpu = schema["$defs"]["TpuSettings"]["properties"]
    known = {*OF_PROGRAMS, *(f"tpu.{key}" for key in tpu)}
    advices = [*(Refusal(meaning=why) for why in meanings()), *(read(row["words"]) for _, row in rows())]
    named = {word for one in advices for word in re.findall(r"`([\w.-]+)", own_words(one.advice(project="p"), "x"))}
    assert {word.rstrip(":") for word in named} - {"gcloud"} <= known


def test_what_gemma_prints_of_the_provider_names_no_command_that_gemma_has():
    found = set()
    for path in Path(provider_words.__file__).parent.glob("*.py"):
        texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        for text in (text for text in texts if isinstance(text, str)):
            found |= set(re.findall(r"`pulumi (\w+)", own_words(text, "x")))
    assert found <= OTHER_VERBS
    assert (
        own_words("Run `pulumi up --refresh`, or `pulumi destroy`.", "x")
        == "Run `gemma up x --refresh`, or `gemma teardown x`."
    )

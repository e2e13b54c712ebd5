"""Changes of what a TPU machine serves, good and bad, under a client that never stops asking. With the real CLI.

Requests may fail in the pause that the machine announces, and only there.
"""

import json
import subprocess
import sys
import time
from datetime import datetime

import pytest

from tests.engine.conftest import CAPACITY, FAILURE, until

STACK = "tpu-v6e1"
UNKNOWN_FLAG = "--no-such-flag"
CLIENT = """
import json, sys, time
from gemma_serving.scripts.stack.access import open_stack_access
from loadtest.client.openai import UnreachableError, call_once
from gemma_serving.engine.state import read
outputs = read(sys.argv[1]).outputs
body = {"model": outputs.model, "prompt": "a", "max_tokens": 8}
with open_stack_access(outputs) as access, open(sys.argv[2], "a", buffering=1) as log:
    while True:
        began = time.time()
        try:
            answer = call_once(access.base_url, access.headers, "POST", "/v1/completions", body=body, limit_s=60)
            failed = "" if answer.status == 200 else f"{answer.status} {answer.message}"
        except UnreachableError as error:
            failed = f"{type(error).__name__}: {error}"
        print(json.dumps([began, time.time(), failed]), file=log)
        time.sleep(0.1)
"""

pytestmark = [pytest.mark.engine, pytest.mark.long]


class Client:
    """A client in a loop, through the tunnel, and what came of each request."""

    def __init__(self, workspace):
        self.log = workspace.folder / "requests.jsonl"
        self.log.touch()
        self.errors = (workspace.folder / "client.err").open("w")
        argv = [sys.executable, "-c", CLIENT, STACK, str(self.log)]
        self.process = subprocess.Popen(
            argv, cwd=workspace.folder / "project", env=workspace.environment, stdout=self.errors, stderr=self.errors
        )

    def requests(self):
        """Each request so far: when it began and ended, and why it failed, in seconds since 1970."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.endswith("]")]

    def wait_for_answers(self):
        """Wait for two answers to requests that begin from now on."""
        now = time.time()
        until(
            lambda: sum(not failed for began, _, failed in self.requests() if began > now) >= 2,
            "the server answers the client",
            process=self.process,
        )

    def end(self):
        self.process.terminate()
        self.process.wait(60)
        self.errors.close()


def guest(workspace):
    """What the machine publishes."""
    (queued,) = workspace.resources(STACK, CAPACITY)
    path = f"tpu/v2alpha1/{queued['outputs']['nodeName']}:getGuestAttributes"
    answer = workspace.post(path, {"queryPath": "gemma-serving/"})
    return {item["key"]: item["value"] for item in answer["guestAttributes"][0]["queryValue"]["items"]}


def pause_of(published):
    """The announced pause in seconds since 1970, or None if there was none."""
    limits = (published.get("pause-began-at", ""), published.get("pause-ended-at", ""))
    return tuple(datetime.fromisoformat(text).timestamp() for text in limits) if all(limits) else None


def failures_outside(done, pauses):
    """The requests that failed and did not touch any of the pauses."""
    return [
        (began, ended, failed)
        for began, ended, failed in done
        if failed and not any(ended >= first and began <= last for first, last in pauses)
    ]


@pytest.fixture(scope="module")
def deployed(workspace):
    workspace.pulumi("stack", "init", STACK)
    workspace.up(STACK)
    client = Client(workspace)
    client.wait_for_answers()
    yield {"client": client, "pauses": []}
    client.end()


def test_the_first_start_is_no_pause_and_the_machine_says_when_it_ends(workspace, deployed):
    published = guest(workspace)
    assert published["serving-hash"] == published["document-hash"]
    assert pause_of(published) is None
    ends_at = until(lambda: guest(workspace).get("ends-at"), "the end of the machine", 120)
    assert ends_at == workspace.outputs(STACK)["deadline"]


def test_a_good_change_fails_requests_in_its_pause_only(workspace, deployed):
    workspace.configure(STACK, **{"vllm.maxNumSeqs": 64})
    done = workspace.up(STACK)
    published = guest(workspace)
    assert published["serving-hash"] == published["document-hash"]
    deployed["good"] = published["serving-hash"]
    pause = pause_of(published)
    assert pause is not None
    assert "requests failed for " in done.text
    deployed["pauses"].append(pause)
    deployed["client"].wait_for_answers()
    assert failures_outside(deployed["client"].requests(), deployed["pauses"]) == []


def test_an_unknown_flag_is_refused_in_the_preview_and_the_machine_is_not_touched(workspace, deployed):
    workspace.configure(STACK, **{"vllm.extraArgs": [UNKNOWN_FLAG]})
    refused = workspace.pulumi("preview", "--stack", STACK, expect=FAILURE)
    assert "ARG02" in refused.text
    assert f"{UNKNOWN_FLAG} is not a flag of vLLM" in refused.text
    assert guest(workspace)["document-hash"] == deployed["good"]


def test_a_bad_flag_is_rolled_back_and_up_says_why_and_what_serves(workspace, deployed):
    workspace.configure(STACK, acceptFindings=["ARG02"])
    failed = workspace.up(STACK, expect=FAILURE)
    assert f"unrecognized arguments: {UNKNOWN_FLAG}" in failed.text
    assert f"The previous configuration is serving: document {deployed['good'][:12]}" in failed.text
    published = guest(workspace)
    assert (published["phase"], published["serving-hash"]) == ("failed", deployed["good"])
    assert published["document-hash"] != deployed["good"]
    deployed["bad"] = published
    pause = pause_of(published)
    assert pause is not None
    deployed["pauses"].append(pause)
    deployed["client"].wait_for_answers()
    assert failures_outside(deployed["client"].requests(), deployed["pauses"]) == []


def test_a_rolled_back_machine_is_shown_by_preview_and_status(workspace, deployed):
    summary = workspace.pulumi("preview", "--json", "--refresh", "--stack", STACK).json["changeSummary"]
    assert summary["update"] == 1
    shown = workspace.script("status", "--stack", STACK).text
    assert f"rolled back to the last known good document, {deployed['good'][:12]}" in " ".join(shown.split()), shown
    assert "unrecognized arguments" in shown


def test_the_same_bad_document_again_fails_again_without_a_pause(workspace, deployed):
    failed = workspace.up(STACK, expect=FAILURE)
    assert "does not retry the same document" in failed.text
    assert pause_of(guest(workspace)) == deployed["pauses"][-1]


def test_an_image_that_does_not_exist_never_stops_the_server(workspace, deployed):
    image = {"repository": "vllm/vllm-tpu", "digest": f"sha256:{'0' * 64}", "version": "0.30.0"}
    workspace.configure(STACK, acceptFindings=None, image=image, **{"vllm.extraArgs": None})
    failed = workspace.up(STACK, expect=FAILURE)
    assert "Cannot pull image" in failed.text
    assert f"The previous configuration is serving: document {deployed['good'][:12]}" in failed.text
    published = guest(workspace)
    assert (published["phase"], published["serving-hash"]) == ("failed", deployed["good"])
    assert pause_of(published) is None
    deployed["client"].wait_for_answers()
    assert failures_outside(deployed["client"].requests(), deployed["pauses"]) == []


def test_the_mended_configuration_needs_no_restart(workspace, deployed):
    workspace.configure(STACK, image=None)
    workspace.up(STACK)
    published = guest(workspace)
    assert (published["phase"], published["document-hash"]) == ("ready", deployed["good"])
    assert pause_of(published) is None
    workspace.assert_no_changes(STACK, "--refresh")
    done = deployed["client"].requests()
    assert failures_outside(done, deployed["pauses"]) == []
    assert failures_outside(done, []), "the client was too slow to see a pause: nothing was proved"


def test_teardown(workspace, deployed):
    deployed["client"].end()
    workspace.script("teardown", "--stack", STACK, "--yes")

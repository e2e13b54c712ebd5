"""A change of the engine: its steps on stderr, its errors whole, and no line of its own."""

import json
import re
import sys
from pathlib import Path

import pytest

from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.proof import Proof
from gemma_serving.engine import runner
from gemma_serving.engine.runner import PulumiFailedError
from gemma_serving.scripts.stack import engine_run

URN = "urn:pulumi:x::gemma-serving::gcp:compute/network:Network::"
RAW = """\
 -  gcp:compute:Network network deleting (0s)
Resources:
    - 35 deleted
If you want to remove the stack completely, run `pulumi stack rm x`.
"""


def deletes(kind, name="network"):
    return {kind: {"metadata": {"op": "delete", "urn": f"{URN}{name}"}}}


def says(severity, text, **more):
    return {"diagnosticEvent": {"severity": severity, "message": f"<{{%fg 1%}}>{text}\n", **more}}


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """Install an engine that prints its own lines, writes events, and ends as told."""

    def make(*events, end="exit 0"):
        (tmp_path / "said").write_text(RAW)
        (tmp_path / "written").write_text("".join(f"{json.dumps(event)}\n" for event in events))
        program = tmp_path / "pulumi"
        program.write_text(f'#!/bin/sh\ncat {tmp_path}/written > "$6"\ncat {tmp_path}/said\n{end}\n')
        program.chmod(0o755)

    monkeypatch.setattr(runner, "pulumi", lambda: str(tmp_path / "pulumi"))
    return make


def destroyed(verb="destroy", steps=2):
    words = {"name": "teardown", "steps": steps, "after_failure": "Then this."}
    if verb == "destroy":
        engine_run.destroy(
            "x",
            Proof(claim="a test's", source="none", owners={"x": Ownership(project="gemma-serving", stack="x")}),
            **words,
        )
    else:
        engine_run.change("x", verb, **words)


BEGIN, DONE = deletes("resourcePreEvent"), deletes("resOutputsEvent")


def test_without_a_terminal_a_short_run_prints_only_what_lasts(engine, capsys):
    engine(BEGIN, says("info#err", "0s us-east5-a deleting", ephemeral=True), says("warning", "slow"), DONE)
    destroyed()
    assert capsys.readouterr().err == "slow\n"


def test_without_a_terminal_a_longer_run_prints_its_step_once_every_few_seconds(engine, monkeypatch, capsys):
    monkeypatch.setattr(engine_run, "PERIOD_S", 0.0)
    engine(BEGIN, end="sleep 0.7")
    destroyed()
    assert capsys.readouterr().err == "1 of 2: deleting gcp:compute:Network network\n"


def test_without_a_terminal_a_message_that_lasts_is_printed_once(engine, monkeypatch, capsys):
    monkeypatch.setattr(engine_run, "PERIOD_S", 0.0)
    engine(BEGIN, says("warning", "slow"), end="sleep 0.7")
    destroyed()
    assert capsys.readouterr().err == "slow\n1 of 2: deleting gcp:compute:Network network\n"


def test_on_a_terminal_one_live_line_has_the_number_the_resource_and_the_time(engine, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    engine(BEGIN, end="sleep 0.7")
    destroyed()
    assert re.search(r"0:00:00\S* 1 of 2: deleting gcp:compute:Network network", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("errors", "end", "told"),
    [
        (["in use", "update failed"], "echo 'error: in use'; exit 255", ("", "in use")),
        (
            ["1 error occurred:\n\t* in use by\n\t  it hf_canaryCanaryCANARY0123456789", "update failed"],
            "echo 'error: in use by'; exit 255",
            ("teardown: in use by\n    it [masked]\n", "in use by"),
        ),
        (
            ["one\n  line", "hf_canaryCanaryCANARY0123456789"],
            "echo 'error: hf_canaryCanaryCANARY0123456789'; exit 255",
            ("teardown: one\n  line\n[masked]\n", "[masked]"),
        ),
        ([], "echo 'error: incorrect passphrase'; exit 255", ("", "incorrect passphrase")),
        ([], "kill -9 $$", ("", "it was killed by SIGKILL, for example because the machine ran out of memory")),
    ],
)
def test_a_change_that_was_killed_or_failed_says_why(engine, capsys, errors, end, told):
    engine(BEGIN, *(says("error", text) for text in errors), end=end)
    with pytest.raises(PulumiFailedError) as failed:
        destroyed()
    printed, reason = told
    assert capsys.readouterr().err == printed
    assert str(failed.value) == f"`pulumi destroy --stack x` failed: {reason}. Then this."


def test_an_interrupt_prints_the_errors_before_it_goes_on(monkeypatch, capsys):
    def interrupted(*words, watch, **_):
        Path(words[5]).write_text(json.dumps(says("error", "in use")) + "\n")
        watch()
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "attended", interrupted)
    with pytest.raises(KeyboardInterrupt):
        destroyed()
    assert capsys.readouterr().err == "teardown: in use\n"

"""The words that the real vLLM gets in place of a container's, and the comparison with the simulated server."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dev.judges.real import answers, vllm_here
from dev.judges.real.agent_reading import reading_of
from dev.judges.real.answers import Exposition, VllmReply
from dev.judges.tests.processes import is_gone
from tests.polling import until

PROGRAM = Path(vllm_here.__file__)
WORDS = ("/mnt/models/gemma", "--host=0.0.0.0", "--port=8000", "--kv-cache-dtype=fp8", "--max-num-seqs=16")


def here(*words: str, **variables: str) -> list[str]:
    return vllm_here.local_command(words, "/oracle", variables)[0]


def test_only_what_a_processor_cannot_take_is_replaced_and_every_replacement_is_said():
    made, said = vllm_here.local_command([*WORDS, "--no-such-flag"], "/oracle", {"VLLM_SIM_BIND_PORT": "1234"})
    assert made[:3] == ["/oracle/models/oracle/tiny-gemma-4", "--host=0.0.0.0", "--port=1234"]
    assert made[3:6] == ["--kv-cache-dtype=auto", "--max-num-seqs=16", "--no-such-flag"]
    assert [text.split()[0] for text in said] == ["model", "--port=8000", "--kv-cache-dtype=fp8", "--enforce-eager"]


@pytest.mark.parametrize(
    ("word", "left"),
    [
        ("--max-model-len=131072", "--max-model-len=8192"),
        ("--max-model-len=4096", "--max-model-len=4096"),
        ("--tensor-parallel-size=4", "--tensor-parallel-size=1"),
        ("--revision=main", None),
        ('--speculative-config={"model":"/mnt/drafter"}', None),
        ('--speculative-config={"method":"ngram"}', '--speculative-config={"method":"ngram"}'),
        ("--load-format=runai_streamer", "--load-format=safetensors"),
    ],
)
def test_a_value_fits_the_tiny_model_or_is_left_out(word: str, left: str | None):
    assert ([left] if left else []) == here("m", word)[1:-2]


def test_a_value_after_its_option_and_several_values_are_found():
    assert here("m", "--max-model-len", "99999")[1] == "--max-model-len=8192"
    assert "name=/mnt/adapter" not in here("m", "--lora-modules", "name=/mnt/adapter", "--max-loras=1")
    assert "--max-loras=1" in here("m", "--lora-modules", "name=/mnt/adapter", "--max-loras=1")


def _vllm(folder: Path, text: str) -> Mapping[str, str]:
    """Write a program in vLLM's place, and return the variables with which vllm_here finds it."""
    program = folder / "venv" / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    program.chmod(0o700)
    return {**os.environ, "REAL_ORACLE": str(folder), "K_SERVICE": "s", "VLLM_SIM_LIFELINE": "stdin"}


def test_the_program_becomes_vllm_and_its_exit_code_is_vllms(tmp_path: Path):
    variables = _vllm(tmp_path, 'echo "$$ $*"; env; exit 7')
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), "vllm", "serve", *WORDS],
        env={**variables, "VLLM_SIM_PYTHONPATH": "/guard", "PYTHONPATH": "/other"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    printed = process.stdout.read().splitlines()  # standard input stays open: its end would end the server
    assert process.wait(60) == 7
    assert printed[0].startswith(f"{vllm_here.PLANNED_MARK} port 8000, 0 simulated seconds")
    assert printed[1].startswith(f"{process.pid} serve ")
    assert {"PYTHONPATH=/guard", "HF_HUB_OFFLINE=1"} <= set(printed)
    assert not [line for line in printed if line.startswith("VLLM_SIM_")]


def test_the_server_ends_with_the_local_cloud_and_leaves_no_process(tmp_path: Path):
    variables = _vllm(tmp_path, 'sleep 1000 & echo "$!" > child; echo "$$" > server; wait')
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), "vllm", "serve", *WORDS],
        env=variables,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    until((tmp_path / "server").is_file, "the server starts", process=process)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == -signal.SIGTERM
    until(lambda: is_gone(int((tmp_path / "child").read_text())), "the server's own child ends")


REAL = Exposition(types={"vllm:a_total": "counter"}, labels={"vllm:a_total": frozenset({"engine"})})


@pytest.mark.parametrize(
    ("simulated", "says"),
    [
        (REAL, None),
        (Exposition(types={"vllm:b_total": "counter"}, labels={"vllm:b_total": frozenset({"engine"})}), "is read"),
        (Exposition(types=REAL.types, labels={"vllm:a_total": frozenset({"engine", "rank"})}), "has rank"),
        (Exposition(types={"vllm:a_total": "gauge"}, labels=REAL.labels), "type of vllm:a_total"),
    ],
)
def test_a_metric_that_differs_from_vllms_is_found(simulated: Exposition, says: str | None):
    faults = list(answers.metric_faults(REAL, simulated, [("vllm:a_total", "vllm:a")]))
    assert bool(faults) == (says is not None)
    assert says is None or any(says in fault for fault in faults)


def _reply(status: int, body: Any) -> VllmReply:
    return VllmReply(status=status, headers={}, text=body if isinstance(body, str) else json.dumps(body))


def _error(kind: str, message: str) -> VllmReply:
    return _reply(400, {"error": {"type": kind, "message": message, "param": None, "code": 400}})


def test_answers_differ_by_status_error_type_words_and_keys():
    same = _error("BadRequestError", "no")
    assert not list(answers.reply_differences(same, same, own=False))
    assert list(answers.reply_differences(same, _error("Bad Request", "no"), own=True))
    assert list(answers.reply_differences(same, _error("BadRequestError", "never"), own=False))
    assert not list(answers.reply_differences(same, _error("BadRequestError", "never"), own=True))
    assert list(answers.reply_differences(same, _reply(200, {}), own=True))
    assert list(answers.reply_differences(_reply(200, {"a": [{"b": 1}]}), _reply(200, {"a": [{"c": 1}]}), own=False))
    assert not list(answers.reply_differences(_reply(200, {"a": {"b": 1}}), _reply(200, {"a": {"b": None}}), own=False))


def test_a_stream_is_the_kinds_of_its_events_in_order():
    one, two = json.dumps({"delta": {"role": "a"}}), json.dumps({"delta": {"content": "b"}})
    text = "".join(f"data: {event}\n\n" for event in (one, two, two, "[DONE]"))
    assert [sorted(shape) for shape in answers.shapes_of(text)] == [
        [".delta", ".delta.role"],
        [".delta", ".delta.content"],
        ["[DONE]"],
    ]


def test_the_metrics_that_the_code_reads_are_found_in_its_files():
    read = answers.read_metrics()
    assert ("http_requests_total",) in read
    assert ("vllm:prefix_cache_hits_total",) in read, "a pattern with choices"
    assert any(names[0] == "vllm:spec_decode_num_drafts_total" for names in read)


def test_every_failed_start_expects_a_known_cause():
    assert {start["cause"] for start in answers.TABLE["starts"]} <= answers.known_causes().keys()


def test_the_agents_phases_and_error_are_read_from_a_log():
    log = "INFO 1 [model.py:1] Starting to load model x...\nINFO 1 torch.compile takes 2 s\nValueError: no memory\n"
    found = reading_of(log)
    assert list(found.phases) == ["loading", "compiling"]
    assert found.error == "ValueError: no memory"

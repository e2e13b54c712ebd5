"""An invalid number is rejected in one sentence by every option and file; `0` never means "not set"."""

import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.planning.numbers import LARGEST, is_number, read_json
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.text import DURATION
from gemma_serving.scripts.cli.command import Command, run_command
from gemma_serving.scripts.cli.options import option_fields
from gemma_serving.scripts.plan.__main__ import main
from gemma_serving.scripts.plan.set_option import set_keys
from gemma_serving.stacks.loading import SettingsError, from_file

NEVER = ("nan", "-inf", "1e400", "9" * 400, "-1", "true", "")
"""Texts that no number option takes."""
L4 = ("--model", "google/gemma-4-12B-it-qat-w4a16-ct", "--accelerator", "L4")
QUESTION = Question().changed(model="google/gemma-4-12B-it-qat-w4a16-ct", accelerator="L4")

SET_KEYS = [
    key for key, field in set_keys().items() if field.hint in {int, float} and field.words and field.quantity is None
]
DURATIONS = [key for key, field in set_keys().items() if field.quantity is DURATION]


def one_sentence(capsys: pytest.CaptureFixture[str], code: int, *, names: str) -> str:
    out, err = capsys.readouterr()
    assert code == ExitCode.REFUSED
    assert out == ""
    assert err.count("\n") == 1, err
    assert names in err
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("key", SET_KEYS)
def test_every_number_of_set_is_refused_when_it_is_none(key: str, capsys: pytest.CaptureFixture[str]):
    for text in NEVER:
        one_sentence(capsys, main([*L4, "--set", f"{key}={text}"]), names=key)


@pytest.mark.parametrize("key", DURATIONS)
def test_every_duration_is_refused_when_it_is_none(key: str, capsys: pytest.CaptureFixture[str]):
    for text in ("nan", "-1s", "5", "1e400s"):
        one_sentence(capsys, main([*L4, "--set", f"{key}={text}"]), names=key)


@pytest.mark.parametrize("key", ["vllm.maxModelLen", "vllm.gpuMemoryUtilization", "maxUsd", "cloudRun.maxInstances"])
def test_nothing_is_not_the_same_as_not_given(key: str, capsys: pytest.CaptureFixture[str]):
    one_sentence(capsys, main([*L4, "--set", f"{key}=0"]), names=key)


COMMANDS = ("plan", "bench", "smoke", "teardown", "preview", "doctor")


def number_options(command: Command[Any]) -> Iterator[tuple[str, str]]:
    """Yield each option of a command that takes a number: the subcommand, empty for none, and the flag."""
    for name, kind in [("", command.options), *((sub.name, sub.options) for sub in command.subcommands)]:
        yield from ((name, flag) for flag in flags(kind))


def flags(kind: type[object]) -> Iterator[str]:
    for field in option_fields(kind).values():
        if field.kind in {int, float} or (field.option.metavar in {"LIST", "USD"} and field.name != "workload"):
            yield field.flag


def all_options() -> Iterator[tuple[str, str, str]]:
    for name in COMMANDS:
        command = importlib.import_module(f"gemma_serving.scripts.{name}.__main__").COMMAND
        yield from ((name, subcommand, flag) for subcommand, flag in number_options(command))


def test_every_option_of_every_command_refuses_what_is_no_number(
    subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]
):
    for name, subcommand, flag in all_options():
        with subtests.test(f"{name} {subcommand} {flag}"):
            command = importlib.import_module(f"gemma_serving.scripts.{name}.__main__").COMMAND
            for text in ("nan", "1e400", "-1", "true"):
                one_sentence(
                    capsys, run_command(command, [*([subcommand] if subcommand else []), f"{flag}={text}"]), names=flag
                )


def test_a_number_of_too_many_digits_is_refused(tmp_path: Path):
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text(f"config:\n  gemma-serving:maxUsd: {'9' * 5_000}\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"^Pulumi\.x\.yaml .*digits.*\.$"):
        from_file(path, project="my-project")


def test_one_helper_says_what_a_number_is():
    assert [is_number(value) for value in (0, -1.5, LARGEST)] == [True] * 3
    assert not any(is_number(value) for value in (True, None, "1", math.nan, math.inf, 10**400))
    assert read_json('{"a": [1, 1.5]}') == {"a": [1, 1.5]}
    for text in ("NaN", "[-Infinity]", "1e400", '{"a": 1e999}'):
        with pytest.raises(ValueError, match="number"):
            read_json(text)

"""An invalid number is rejected in one sentence by every option and file; `0` never means "not set"."""

import importlib
import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.numbers import LARGEST, is_number, read_json
from gemma_serving.planning.planner import plan
from gemma_serving.planning.settings.deployment import Deployment
from gemma_serving.planning.settings.paths import question_fields, with_changes
from gemma_serving.planning.settings.text import DURATION
from gemma_serving.planning.settings.vllm_args import Limit
from gemma_serving.scripts.cli.command import Command, run_command
from gemma_serving.scripts.cli.options import option_fields
from gemma_serving.scripts.plan.__main__ import main
from gemma_serving.scripts.plan.set_option import set_keys
from gemma_serving.stacks.loading import SettingsError, from_file, gateway_from_file, is_gateway_file
from gemma_serving.stacks.schema import alternatives, block_of, settings_schema

ROOT = Path(__file__).resolve().parents[2]
NEVER = ("nan", "-inf", "1e400", "9" * 400, "-1", "true", "")
"""Texts that no number option takes."""
L4 = ("--model", "google/gemma-4-12B-it-qat-w4a16-ct", "--accelerator", "L4")
QUESTION = Deployment(model="google/gemma-4-12B-it-qat-w4a16-ct", accelerator="L4")

SET_KEYS = [
    key
    for key, field in set_keys().items()
    if field.hint in {int, float} and field.limit is not None and field.quantity is None
]
DURATIONS = [key for key, field in set_keys().items() if field.quantity is DURATION]
LIMITED = [
    path
    for path, field in question_fields().items()
    if field.limit is not None and not path.startswith(("vllm.", "workload."))
]


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
        one_sentence(capsys, main([*L4, "--set", f"{key}={text}", "--json"]), names=key)


@pytest.mark.parametrize("key", DURATIONS)
def test_every_duration_is_refused_when_it_is_none(key: str, capsys: pytest.CaptureFixture[str]):
    for text in ("nan", "-1s", "5", "1e400s"):
        one_sentence(capsys, main([*L4, "--set", f"{key}={text}"]), names=key)


@pytest.mark.parametrize("key", ["vllm.maxModelLen", "vllm.gpuMemoryUtilization", "maxUsd", "cloudRun.maxInstances"])
def test_nothing_is_not_the_same_as_not_given(key: str, capsys: pytest.CaptureFixture[str]):
    one_sentence(capsys, main([*L4, "--set", f"{key}=0"]), names=key)


@given(st.sampled_from(sorted(LIMITED)), st.sampled_from([math.nan, math.inf, -math.inf, -1, 10**400, 1e300, True]))
def test_a_program_that_plans_gets_the_same_refusal(path: str, value: float):
    with pytest.raises(PlanningError, match=r"^[a-zA-Z.]+ is .*; expected .*\.$"):
        plan(with_changes(QUESTION, {path: value}))


COMMANDS = ("plan", "bench", "smoke", "teardown", "preview", "recover", "doctor")


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


def number_settings(block: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, value in block["properties"].items():
        place = f"{path}.{key}" if path else key
        inner = block_of(settings_schema(), value)
        if inner and key != "image":
            yield from number_settings(inner, place)
        elif any(option.get("type") in {"integer", "number"} for option in alternatives(value)):
            yield place


NO_NUMBERS = (".nan", "-.inf", "true")
FILES = {"tpu": ROOT / "Pulumi.tpu-v6e4.yaml", "cloudRun": ROOT / "Pulumi.l4-qat.yaml"}
GATEWAY = {"region": "us-east5", "regions": ["us-east5"], "backends": [{"stack": "tpu-v6e4"}]}


def document_with(key: str) -> dict[str, Any]:
    """A valid settings file of the target that a key is of."""
    if key.startswith("gateway."):
        return {"config": {"gemma-serving:target": "gateway", "gemma-serving:gateway": {**GATEWAY}}}
    source = FILES["tpu" if key.startswith("tpu.") else "cloudRun"]
    return yaml.safe_load(source.read_text(encoding="utf-8"))


def test_a_settings_file_is_refused_with_the_key(subtests: pytest.Subtests, tmp_path: Path):
    for key, text in product(number_settings(settings_schema()), NO_NUMBERS):
        with subtests.test(f"{key}: {text[:20]}"):
            document = document_with(key)
            place: Any = document["config"]
            first, *rest = key.split(".")
            keys = [f"gemma-serving:{first}", *rest]
            for name in keys[:-1]:
                place = place.setdefault(name, {})
            place[keys[-1]] = yaml.safe_load(text)
            path = tmp_path / "Pulumi.x.yaml"
            path.write_text(yaml.safe_dump(document), encoding="utf-8")
            with pytest.raises(SettingsError) as caught:
                (gateway_from_file if is_gateway_file(path) else from_file)(path, project="my-project")
            assert keys[-1] in str(caught.value)
            assert all(
                line.startswith("Pulumi.x.yaml: ") and line.endswith(".") for line in str(caught.value).splitlines()
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
    assert not Limit().allows(math.nan)

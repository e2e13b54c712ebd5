"""Edits of a settings file."""

import pytest

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.engine import runner
from gemma_serving.engine.settings_file import SettingsFile
from gemma_serving.scripts.stack.settings import stack_settings


def test_a_removed_key_leaves_the_comments_of_its_neighbours():
    text = (
        "config:\n  # the target\n  gemma-serving:target: tpu # why\n  # the model\n  gemma-serving:model: a/b\n"
        "  gemma-serving:tpu:\n    zones: [a] # one\n  # the image\n  gemma-serving:image: vllm-tpu\n"
    )
    file = SettingsFile(text)
    file.apply({"model": None, "tpu": None})
    assert file.text() == (
        "config:\n  # the target\n  gemma-serving:target: tpu # why\n  # the model\n  # the image\n  gemma-serving:image: vllm-tpu\n"
    )


def test_a_file_without_a_change_of_a_value_keeps_its_form():
    text = "config:\n  gemma-serving:tpu: {zones: [a,\n    b]}\n"
    file = SettingsFile(text)
    file.merge("config: {}\n", "config: # engine\n")
    assert file.text() == text


def test_a_deployed_stack_without_its_file_names_the_command_that_writes_it(monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "project_folder", lambda: tmp_path)
    monkeypatch.setattr(runner, "listed_stacks", lambda: frozenset(["x"]))
    with pytest.raises(CommandRefusedError, match="run `pulumi config refresh --stack x --force`"):
        stack_settings("x")

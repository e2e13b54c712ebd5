"""Edits of a settings file."""

from pathlib import Path

from gemma_serving.scripts.stack.settings_file import SettingsFile


def test_a_removed_key_leaves_the_comments_of_its_neighbours(tmp_path: Path):
    path = tmp_path / "Pulumi.x.yaml"
    text = (
        "config:\n  # the target\n  gemma-serving:target: tpu # why\n  # the model\n  gemma-serving:model: a/b\n"
        "  gemma-serving:tpu:\n    zones: [a] # one\n  # the image\n  gemma-serving:image: vllm-tpu\n"
    )
    path.write_text(text, encoding="utf-8")
    file = SettingsFile(path)
    file.apply({"model": None, "tpu": None})
    assert file.text() == (
        "config:\n  # the target\n  gemma-serving:target: tpu # why\n  # the model\n  # the image\n  gemma-serving:image: vllm-tpu\n"
    )

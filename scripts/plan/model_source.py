"""Source of a model's architecture on the hub."""

import json
from pathlib import Path

from gemma_serving.cloud.model_files import CONFIG, INDEX
from gemma_serving.planning.model.spec import ModelSpec
from gemma_serving.scripts.cli.command import print_progress


def from_hub(model: str, *, save: Path | None) -> ModelSpec:
    """Return a model's architecture from the Hugging Face hub, and save its files in a folder. Raises ScriptError."""
    from gemma_serving.cloud.hub import config_of  # noqa: PLC0415 - slow to load
    from gemma_serving.planning.model.hf_config import model_from_config  # noqa: PLC0415 - only models outside the catalog need it

    config, index = config_of(model)
    spec = model_from_config(config, name=model, index=index)
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
        (save / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        written = [save / CONFIG]
        if index is not None:
            written.append(save / INDEX)
            (save / INDEX).write_text(json.dumps(index) + "\n", encoding="utf-8")
        files = " and ".join(map(str, written))
        print_progress("plan", f"wrote {files}. To use them in a stack, set gemma-serving:modelConfig to {save}.")
    return spec

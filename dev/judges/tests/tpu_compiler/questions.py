"""A question for the tests of the room."""

from dev.judges.tpu_compiler.question import CompileQuestion


def question(**changes) -> CompileQuestion:
    """Return a question about E2B on one chip."""
    asked = {
        "arguments": ("google/gemma-4-E2B-it", "--max-model-len=16384"),
        "environment": {"VLLM_X": "1"},
        "accelerator_type": "v6e-1",
        "devices": 1,
        "usable_gib": 31.24,
        "config": {"model_type": "gemma4"},
    }
    return CompileQuestion(**{**asked, **changes})

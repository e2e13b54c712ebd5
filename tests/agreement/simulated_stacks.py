"""A shipped stack as planned, and as the local cloud's simulated server starts it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gemma_serving.contracts.settings_files import settings_file, shipped_files
from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.planner import plan_of
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.settings.vllm_args import vllm_arguments
from gemma_serving.planning.speed.residuals import BURST_REQUESTS, SMOKE_OUTPUT_TOKENS, SMOKE_PROMPT_TOKENS
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question
from localcloud.vllm.arguments import Arguments, parse
from localcloud.vllm.boot import Start, plan
from localcloud.vllm.settings import read
from localcloud.vllm.slots import drafts_of, recorded_pace
from tests.records import replace

ROOT = Path(__file__).resolve().parents[2]
STACKS = sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in shipped_files(ROOT))
BUILT_IMAGE = f"registry/vllm-tpu@sha256:{'1' * 64}"
"""An image that loads 4-bit weights on a TPU."""
MOUNTS: Mapping[str, Mapping[str, str]] = {
    "fuse": {},
    "fuse-buffered": {"enable-buffered-read": "true"},
    "fuse-cached": {"cache-dir": "/cache"},
}
"""Options of the mount by the weights mode."""


@dataclass(frozen=True)
class Served:
    """A stack as planned, and the arguments of its server."""

    settings: Settings
    subject: Subject
    arguments: Arguments

    def start(self, folder: Path, **more: str) -> Start:
        """Return the start of the simulated server, with the weights where the stack has them, and with more of its variables."""
        name, resolved = self.subject.resolved.model_id.rpartition("/")[2], self.subject.resolved
        weights = {f"{name}/config.json": 1, f"{name}/model.safetensors": 1}
        for file in weights:
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text("x")
        mode, listing = resolved.weights_mode, folder / "listing.json"
        around = {
            **dict(plan_of(self.subject).environment),
            "VLLM_SIM_ACCELERATOR": hardware_of(self.settings),
            "VLLM_SIM_IMAGE": BUILT_IMAGE,
            "VLLM_SIM_PATHS": json.dumps({"/": str(folder)}),
        }
        if not resolved.is_tpu and not resolved.service.direct_vpc:
            around["VLLM_SIM_NETWORK_MB_PER_S"] = "75"
        places = {"hub": resolved.model_id, "streamer": f"gs://models/{name}"}
        if mode in MOUNTS:
            mount = {"path": "/mnt/models", "files": weights, "options": MOUNTS[mode], "readable": True}
            listing.write_text(json.dumps([mount]))
            around["VLLM_SIM_MOUNTS_FILE"], places[mode] = str(listing), f"/mnt/models/{name}"
        elif mode == "streamer" and not resolved.is_tpu:
            listing.write_text(json.dumps({"models": {"files": weights, "problem": ""}}))
            around["VLLM_SIM_BUCKETS_FILE"] = str(listing)
        elif mode == "memory" and not resolved.is_tpu:
            around["VLLM_SIM_MEMORY_VOLUMES"] = json.dumps({str(folder): 2**20})
        model = places.get(mode, f"/{name}")
        return plan(replace(self.arguments, model=model), read({**around, **more}))

    def rates(self, start: Start) -> Mapping[str, Mapping[str, float]]:
        """Return what the smoke checks of speed measure on an idle machine, by check."""
        assert start.model is not None
        arguments, together = self.arguments, BURST_REQUESTS
        drafts = drafts_of(arguments.speculative_config)
        pace = recorded_pace(start.model, start.card, arguments.tensor_parallel_size, drafts=drafts)
        burst_s = pace.ttft_s(0) + SMOKE_OUTPUT_TOKENS * pace.interval_s(together)
        return {
            "single stream": {
                "ttft_s": pace.ttft_s(SMOKE_PROMPT_TOKENS),
                "decode_tok_per_s": 1 / pace.interval_s(1),
            },
            "burst": {"burst_tok_per_s": together * SMOKE_OUTPUT_TOKENS / burst_s},
        }


def settings_of(stack: str) -> Settings:
    return from_file(settings_file(stack, ROOT), project="local-project")


def served(stack: str, length: int | None = None, **options: object) -> Served:
    """Return a stack with a length and other vLLM options, or with its own ones."""
    settings = settings_of(stack)
    question = to_question(settings, ROOT)
    changed: Mapping[str, object] = {**options, **({} if length is None else {"max_model_len": length})}
    return served_as(settings, question.changed(vllm=replace(question.settings.vllm, **changed)))  # pyright: ignore[reportArgumentType]


def served_as(settings: Settings, question: Question) -> Served:
    """Return a changed deployment of a stack."""
    subject = examine(question)
    words = vllm_arguments(subject.resolved.vllm, model_or_path=subject.resolved.model_id)
    return Served(settings=settings, subject=subject, arguments=parse(["vllm", "serve", *words]))


def hardware_of(settings: Settings) -> str:
    if settings.tpu is not None:
        return settings.tpu.accelerator_type
    assert settings.cloud_run is not None
    return settings.cloud_run.gpu

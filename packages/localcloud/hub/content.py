"""File contents of a repository: small, generated here, identical in every process, with the names and formats of the real files.

A safetensors file has a valid header, and tensors whose shapes, offsets and bytes agree with it. Only the sizes differ from the real ones.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

from localcloud.hub.repositories import ADAPTER_CONFIG, CONFIG, INDEX, TEMPLATE, WEIGHTS, Repository, architecture
from localcloud.vllm.recorded import drafter_bytes, find_model

NOTE: Final = "simulated by the local cloud: content is generated, tensors are shrunk"
_LFS_NAMES: Final = ("tokenizer.json",)
_WIDTH: Final = 32
"""Rows and columns of a shrunk tensor."""
_IGNORED: Final = ["lm_head", "re:.*embed_tokens.*", "re:.*vision.*", "re:.*audio.*"]
_PARTS: Final = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """One file at the head of a repository."""

    name: str
    content: bytes
    real_bytes: int
    """Size of the real file. 0 if no source states it and nothing depends on it."""
    is_stated: bool
    """True if a source states the real size."""

    @property
    def is_lfs(self) -> bool:
        """Return whether the repository holds a pointer and the hub's storage holds the content."""
        return self.name.endswith(WEIGHTS) or self.name in _LFS_NAMES

    @property
    def sha256(self) -> str:
        """Return the hash of the content."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def git_id(self) -> str:
        """Return the Git id of the object in the repository."""
        held = self.pointer if self.is_lfs else self.content
        return hashlib.sha1(b"blob %d\0" % len(held) + held, usedforsecurity=False).hexdigest()

    @property
    def pointer(self) -> bytes:
        """Return the pointer of Git LFS (git-lfs, docs/spec.md)."""
        return (
            f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.content)}\n".encode()
        )


@lru_cache(maxsize=64)
def files_of(repository: Repository) -> Mapping[str, HubFile]:
    """Return all files of a repository by name."""
    shards = dict(_shards(repository))
    whole = _weights_bytes(repository)
    contents = {name: _safetensors(tensors) for name, tensors in shards.items()}
    for name in repository.names:
        if name not in contents:
            contents[name] = _other(repository, name, shards, whole)
    return {
        name: HubFile(
            name=name,
            content=contents[name],
            real_bytes=repository.real_bytes(name, whole),
            is_stated=repository.states_size_of(name),
        )
        for name in repository.names
    }


def _weights_bytes(repository: Repository) -> int:
    """Return the size of all real weights. If no source states it, return the size in the simulator's own model."""
    if repository.drafter:
        return drafter_bytes(repository.id)
    if repository.adapter_rank:
        return _adapter_bytes(repository)
    model = find_model(repository.id)
    return model.disk_bytes if model is not None else 0


def _adapter_bytes(repository: Repository) -> int:
    """Return the size of an adapter of every projection of the language model, in bf16."""
    text = architecture(repository.size)["text"]
    hidden = int(text["hidden_size"])
    inner = int(text["intermediate_size"])
    layers = int(text["num_hidden_layers"])
    query = int(text["num_attention_heads"]) * 256
    key = int(text["num_key_value_heads"]) * 256
    widths = 2 * (hidden + query) + 2 * (hidden + key) + 3 * (hidden + inner)
    return layers * widths * repository.adapter_rank * 2


def _shards(repository: Repository) -> Iterator[tuple[str, Sequence[tuple[str, str, int]]]]:
    """Yield each weights file with its tensors: name, type, bytes per element. Layers are divided among the files in order."""
    layers = 4 if repository.drafter else int(architecture(repository.size)["text"]["num_hidden_layers"])
    if repository.adapter_rank:
        prefix = "base_model.model.model.language_model.layers"
        names = [
            f"{prefix}.{layer}.{part}.lora_{half}.weight" for layer in range(2) for part in _PARTS for half in "AB"
        ]
        yield repository.weights[0], [(name, "BF16", 2) for name in names]
        return
    prefix = "model." if repository.drafter else "model.language_model."
    count = len(repository.weights)
    for position, name in enumerate(repository.weights):
        tensors = [(f"{prefix}embed_tokens.weight", "BF16", 2)] if position == 0 else []
        for layer in range(position * layers // count, (position + 1) * layers // count):
            for part in _PARTS:
                tensors += _linear(repository, f"{prefix}layers.{layer}.{part}")
        if position == count - 1:
            tensors.append((f"{prefix}norm.weight", "BF16", 2))
        yield name, tensors


def _linear(repository: Repository, name: str) -> list[tuple[str, str, int]]:
    """Return the tensors of a linear layer, with the names of each format."""
    if repository.form == "w4a16":
        return [(f"{name}.weight_packed", "I32", 4), (f"{name}.weight_scale", "BF16", 2)]
    if repository.form == "fp8":
        return [(f"{name}.weight", "F8_E4M3", 1), (f"{name}.weight_scale", "BF16", 2)]
    if repository.form.startswith("nvfp4"):
        return [(f"{name}.weight_packed", "U8", 1), (f"{name}.weight_scale", "F8_E4M3", 1)]
    return [(f"{name}.weight", "BF16", 2)]


def _safetensors(tensors: Sequence[tuple[str, str, int]]) -> bytes:
    """Return a safetensors file: 8 bytes with the header length, the header, the tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "simulated": NOTE}}
    body = bytearray()
    for name, kind, width in tensors:
        start = len(body)
        # The bytes depend on the name, so tensors differ but every process generates the same ones.
        body += hashlib.shake_128(name.encode()).digest(_WIDTH * _WIDTH * width)
        header[name] = {"dtype": kind, "shape": [_WIDTH, _WIDTH], "data_offsets": [start, len(body)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(body)


def _other(
    repository: Repository, name: str, shards: Mapping[str, Sequence[tuple[str, str, int]]], whole: int
) -> bytes:
    """Return a file without tensors."""
    if name == CONFIG:
        return _json(_config(repository))
    if name == ADAPTER_CONFIG:
        rank = repository.adapter_rank
        parts = [part.rpartition(".")[2] for part in _PARTS]
        peft: dict[str, Any] = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": parts}
        return _json({**peft, "base_model_name_or_path": f"google/gemma-4-{repository.size}-it", "simulated": NOTE})
    if name == INDEX:
        real = sum(repository.real_bytes(one, whole) for one in repository.weights)
        small = sum(_WIDTH * _WIDTH * width for tensors in shards.values() for _, _, width in tensors)
        placed = {tensor: shard for shard, tensors in shards.items() for tensor, _, _ in tensors}
        # Planners read the checkpoint size here, so it is the real one.
        metadata = {"total_size": real, "simulated": NOTE, "simulated_total_size": small}
        return _json({"metadata": metadata, "weight_map": placed})
    if name.endswith(".json"):
        return _json({"simulated": NOTE})
    if name == TEMPLATE:
        return (files("localcloud.hub") / "data" / TEMPLATE).read_bytes()
    return f"{NOTE}\n".encode()


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _config(repository: Repository) -> dict[str, Any]:
    """Return config.json. The dimensions are the real ones."""
    size = architecture(repository.size)
    kind, text = str(size["model_type"]), dict(size["text"])
    period = int(size["period"])
    common: dict[str, Any] = {
        "model_type": f"{kind}_text",
        "vocab_size": 262_144,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": text["sliding_window"],
        "max_position_embeddings": text["max_position_embeddings"],
    }
    if repository.drafter:
        own = dict(size["drafter"])
        centroids = own.pop("num_centroids", None)
        layers = ["sliding_attention"] * 3 + ["full_attention"]
        drafter: dict[str, Any] = {
            "architectures": ["Gemma4AssistantForCausalLM"],
            "model_type": f"{kind}_assistant",
            "backbone_hidden_size": text["hidden_size"],
            "tie_word_embeddings": True,
            "text_config": {
                **common,
                **own,
                "num_hidden_layers": 4,
                "num_key_value_heads": text["num_key_value_heads"],
                "num_kv_shared_layers": 4,
                "layer_types": layers,
            },
            "simulated": NOTE,
        }
        return drafter if centroids is None else {**drafter, "num_centroids": centroids, "use_ordered_embeddings": True}
    kinds = [
        "full_attention" if (layer + 1) % period == 0 else "sliding_attention"
        for layer in range(int(text["num_hidden_layers"]))
    ]
    name = "Gemma4UnifiedForConditionalGeneration" if "unified" in kind else "Gemma4ForConditionalGeneration"
    config: dict[str, Any] = {
        "architectures": [name],
        "model_type": kind,
        "tie_word_embeddings": True,
        "text_config": {**common, **text, "layer_types": kinds},
        "vision_config": dict(size["vision"]),
        "simulated": NOTE,
    }
    if "audio" in size:
        config["audio_config"] = dict(size["audio"])
    quantization = _quantization(repository)
    return {**config, "quantization_config": quantization} if quantization else config


def _quantization(repository: Repository) -> dict[str, Any]:
    """Return the quantization_config of a form. Empty for bf16."""
    if repository.form in {"nvfp4-modelopt", "nvfp4-experts"}:
        attention = ["lm_head", "model.language_model.layers.*.self_attn*"]
        dense = ["model.language_model.layers.*.mlp*"] if repository.form == "nvfp4-experts" else []
        return {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": [*attention, *dense]}
    weights: dict[str, dict[str, Any]] = {
        "w4a16": {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group", "symmetric": True},
        "fp8": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
        "nvfp4": {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group", "symmetric": True},
    }
    if repository.form not in weights:
        return {}
    group = {"targets": ["Linear"], "weights": weights[repository.form]}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": _IGNORED}

"""A planned start with the world around it, for the examples of refusals and for the tests of loads."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localcloud.vllm.arguments import parse
from localcloud.vllm.boot import Start, plan
from localcloud.vllm.settings import read


def start_of(given: Mapping[str, Any], folder: Path) -> Start:
    """Return the start of `words` on a card, with variables, of which {folder} is a real folder.

    `mount`, `bucket` and `volume_mib`: the model's files on a mount, in a bucket, in a volume in memory; `rank`: that of the adapter `sql`.
    """
    words = str(given.get("words", "simulated/tiny")).format(folder=folder).split()
    around = {"VLLM_SIM_ACCELERATOR": given.get("card", "nvidia-l4")}
    around |= {name: value.replace("{folder}", str(folder)) for name, value in given.get("variables", {}).items()}
    named = words[0].rpartition("/")[2] if words else ""
    sizes = {f"{named}/{name}": 1 for name in given.get("mount", given.get("bucket", ()))}
    if "mount" in given:
        options, readable = given.get("options", {}), given.get("readable", True)
        mount = {"path": "/mnt", "files": sizes, "options": options, "readable": readable}
        around["VLLM_SIM_MOUNTS_FILE"] = written(folder / "mounts.json", [mount])
    if "bucket" in given:
        listed = {"b": {"files": sizes, "problem": given.get("problem", "")}}
        around["VLLM_SIM_BUCKETS_FILE"] = written(folder / "buckets.json", listed)
    if "volume_mib" in given:
        for name in ("config.json", "a.safetensors"):
            written(folder / named / name, {})
        around["VLLM_SIM_MEMORY_VOLUMES"] = json.dumps({str(folder): given["volume_mib"]})
    if "/adapters" in str(words):
        around["VLLM_SIM_PATHS"] = json.dumps({"/": str(folder)})
    if "rank" in given:
        written(folder / "adapters" / "sql" / "adapter_config.json", {"r": given["rank"]})
    return plan(parse(["vllm", "serve", *words]), read(around))


def written(file: Path, content: object) -> str:
    """Write JSON. Return the path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    return str(file)

# pyright: basic, reportMissingImports=false
"""Read weights with vLLM's own loaders, and print seconds, bytes and a digest. Runs in vLLM's environment (dev.judges.real_vllm).

`python read_weights.py LOADER FILE...`, with LOADER `safetensors`, `prefetch` (the same with --safetensors-load-strategy=prefetch) or `streamer`.
"""

import hashlib
import json
import sys
import time

from vllm.model_executor.model_loader import weight_utils


def main() -> None:
    """Read all tensors of the files into memory, then print what was read."""
    loader, *files = sys.argv[1:]
    if loader == "streamer":
        tensors = weight_utils.runai_safetensors_weights_iterator(files, False)
    else:
        strategy = "prefetch" if loader == "prefetch" else None
        tensors = weight_utils.safetensors_weights_iterator(files, False, strategy)
    began_s = time.monotonic()
    found = {name: tensor.clone() for name, tensor in tensors}
    took_s = time.monotonic() - began_s
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(name.encode() + found[name].view(dtype=weight_utils.torch.uint8).numpy().tobytes())
    read = sum(tensor.nbytes for tensor in found.values())
    print(json.dumps({"seconds": took_s, "tensors": len(found), "bytes": read, "sha256": digest.hexdigest()}))


if __name__ == "__main__":
    main()

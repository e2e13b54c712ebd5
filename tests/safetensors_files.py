"""Small files of weights."""

import json


def safetensors(data: bytes, name: str = "weights") -> bytes:
    """Return a safetensors file with one tensor of these bytes."""
    tensor = {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}
    header = json.dumps({"__metadata__": {"format": "pt"}, name: tensor}).encode()
    return len(header).to_bytes(8, "little") + header + data

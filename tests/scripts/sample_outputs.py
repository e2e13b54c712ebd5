"""Outputs of a stack as its JSON, for tests of the commands that read them."""


def sample_outputs(**changes):
    raw = {
        "target": "cloud-run",
        "model": "google/gemma-4-E2B-it",
        "servedModel": "timed",
        "endpoint": "https://s.run.app",
        "auth": "id-token",
        "tunnel": None,
        "image": "i@sha256:0",
        "plan": {
            "fits": True,
            "verdict": "fits",
            "model": "google/gemma-4-E2B-it",
            "accelerator": "L4",
            "platform": "cloud-run",
            "memory": {
                "usableGib": 22.0,
                "weightsGib": 9.6,
                "activationsGib": 1.2,
                "graphsGib": 0.4,
                "kvGib": 9.0,
                "kvTokens": 592736,
                "kvBlocks": 18523,
                "maxConcurrency": 36.2,
            },
            "startup": {"pullS": 60, "loadS": 40, "compileS": 80, "totalS": 180, "restartS": 95, "probeBudgetS": 540},
            "throughput": {"decodeTokPerS": 60, "saturatedTokPerS": 900},
            "cost": {"usdPerHour": 1.42, "mostUsd": 1036.6, "usdPerMillionTokens": 6.6},
        },
        "vllm": {"blockSize": 32, "gpuMemoryUtilization": 0.9, "kvCacheDtype": "fp8", "maxModelLen": 4096},
        "smoke": {
            "startupBudgetS": 600,
            "maxTtftS": 0.5,
            "minDecodeTokPerS": 30,
            "minBurstTokPerS": None,
            "burstRequests": 8,
            "maxModelLen": 4096,
        },
        "labels": {},
        "features": {},
        "project": "p",
        "location": "us-east4",
    }
    return raw | changes

"""`python -m localcloud`, and the command `localcloud`."""

import gc
import sys


def console() -> int:
    """Run the command line of this process and return the exit code."""
    words = sys.argv[1:]
    if words[:1] == ["model-server"]:
        from localcloud.vllm.server import main as serve_model  # noqa: PLC0415 - the cloud takes a second to load

        return serve_model(["serve", *words[1:]])
    # Imported modules stay until the end, so collecting it is a fifth of the CPU time of a short run.
    gc.disable()
    from localcloud.cli import main  # noqa: PLC0415 - after the collector has stopped

    gc.freeze()
    gc.enable()
    return main(words)


if __name__ == "__main__":
    sys.exit(console())

"""Entry points: the start-up script starts the agent as a systemd unit; the unit runs the agent."""

import os
import signal
import sys
import threading
from typing import NoReturn

from components.tpu_vm.agent.base import SCRIPT_KEY, UNIT, ServingError, log
from components.tpu_vm.agent.cloud import Metadata
from components.tpu_vm.agent.containers import run_command, wait_for_docker
from components.tpu_vm.agent.phases import Publisher
from components.tpu_vm.agent.serving import Agent, Wanted, watch

PASSED_ON = (
    "PATH",
    "GCE_METADATA_HOST",
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER",
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE",
    "GEMMA_SERVING_LOOPBACK",
)

# The unit reads this very program from metadata, so that nothing has to be on disk.
BOOTSTRAP = f"""
import os, urllib.request as r
host = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
url = "http://" + host + "/computeMetadata/v1/instance/attributes/{SCRIPT_KEY}"
ask = r.Request(url, headers={{"Metadata-Flavor": "Google"}})
exec(compile(r.build_opener(r.ProxyHandler({{}})).open(ask, timeout=30).read(), "{SCRIPT_KEY}", "exec"))
"""


def launch() -> int:
    """Start the agent's unit anew and return; a running container is left alone."""
    run_command(["systemctl", "stop", f"{UNIT}.service"])  # there is none yet, unless the script is run again by hand
    run_command(["systemctl", "reset-failed", f"{UNIT}.service"])
    argv = ["systemd-run", f"--unit={UNIT}", "--collect", "--property=Restart=always", "--property=RestartSec=2"]
    argv.append("--property=StartLimitIntervalSec=0")
    argv += [f"--setenv={name}={os.environ[name]}" for name in PASSED_ON if name in os.environ]
    status, output = run_command([*argv, "/usr/bin/env", "python3", "-c", BOOTSTRAP, "agent"])
    log(output or f"{UNIT} started.")
    return status


def serve_forever() -> NoReturn:
    """Run the agent in this process."""
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))  # files in memory are removed on the way out
    metadata, wanted = Metadata(), Wanted()
    publisher = Publisher(metadata)
    publisher.tell("starting", "")
    threading.Thread(target=watch, args=(metadata, wanted), daemon=True).start()
    try:
        wait_for_docker()
        Agent(metadata, wanted, publisher).run()
    except ServingError as error:
        publisher.tell("failed", "", str(error))
        sys.exit(1)  # systemd starts it again
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    if sys.argv[1:] == ["agent"]:
        serve_forever()
    sys.exit(launch())

"""Entry points: the start-up script starts the agent as a systemd unit, and the unit runs the agent."""

import os
import signal
import sys
from typing import NoReturn

from gemma_serving.contracts.collector import COLLECTOR_METADATA_KEY
from gemma_serving.contracts.guest_attributes import RETRYING, STARTING
from gemma_serving.contracts.rollout import ENDS_AT_METADATA_KEY, ROLLOUT_METADATA_KEY
from gemma_serving.contracts.serving_document import RESTART_METADATA_KEY, SCRIPT_METADATA_KEY
from gemma_serving.vm_agent.base import (
    HUB_CACHE_FOLDER_VARIABLE,
    HUB_ENDPOINT_VARIABLE,
    STATE_FOLDER_VARIABLE,
    UNIT,
    ServingError,
    log,
)
from gemma_serving.vm_agent.clock import CLOCK
from gemma_serving.vm_agent.cloud import MetadataClient
from gemma_serving.vm_agent.confinement import DEVICE_FOLDER_VARIABLE
from gemma_serving.vm_agent.containers import ensure_docker, run_command
from gemma_serving.vm_agent.follow import LatestDocument, follow_document, follow_key
from gemma_serving.vm_agent.metadata_guard import CGROUP_FOLDER_VARIABLE
from gemma_serving.vm_agent.observe import Observer
from gemma_serving.vm_agent.publishing import PhasePublisher
from gemma_serving.vm_agent.serving import Agent
from gemma_serving.vm_agent.shipping import LogShipper

# Variables of the start-up script's environment that are passed to the agent.
FORWARDED_VARIABLES = (
    "PATH",
    "GCE_METADATA_HOST",
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER",
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE",
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING",
    "GEMMA_SERVING_LOOPBACK",
    HUB_CACHE_FOLDER_VARIABLE,
    HUB_ENDPOINT_VARIABLE,
    DEVICE_FOLDER_VARIABLE,
    CGROUP_FOLDER_VARIABLE,
    STATE_FOLDER_VARIABLE,
)

# The unit reads this program from metadata, so nothing has to be on disk.
BOOTSTRAP = f"""
import os, urllib.request as r
host = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
url = "http://" + host + "/computeMetadata/v1/instance/attributes/{SCRIPT_METADATA_KEY}"
ask = r.Request(url, headers={{"Metadata-Flavor": "Google"}})
exec(compile(r.build_opener(r.ProxyHandler({{}})).open(ask, timeout=30).read(), "{SCRIPT_METADATA_KEY}", "exec"))
"""


def launch() -> int:
    """Restart the agent's unit and return its exit status. A running container keeps running."""
    run_command(["systemctl", "stop", f"{UNIT}.service"])  # exists only if the script is run again
    run_command(["systemctl", "reset-failed", f"{UNIT}.service"])
    argv = ["systemd-run", f"--unit={UNIT}", "--collect", "--property=Restart=always", "--property=RestartSec=2"]
    argv.append("--property=StartLimitIntervalSec=0")
    argv += [f"--setenv={name}={os.environ[name]}" for name in FORWARDED_VARIABLES if name in os.environ]
    status, output = run_command([*argv, "/usr/bin/env", "python3", "-c", BOOTSTRAP, "agent"])
    log(output or f"{UNIT} started.")
    return status


def serve_forever() -> NoReturn:
    """Run the agent in this process."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so files in memory are deleted on exit
    metadata, latest = MetadataClient(), LatestDocument()
    publisher = PhasePublisher(metadata)
    shipper = LogShipper(metadata, publisher)
    publisher.tell = shipper.agent_line
    CLOCK.start(shipper.run)
    publisher.publish(STARTING, "")
    CLOCK.start(follow_document, metadata, latest)
    try:
        ensure_docker()
        agent = Agent(metadata, latest, publisher, shipper)
        observer = Observer(metadata, publisher, agent.run_end, agent.secrets)
        CLOCK.start(observer.run)
        followed = {
            ROLLOUT_METADATA_KEY: latest.set_limits,
            RESTART_METADATA_KEY: latest.set_restart,
            ENDS_AT_METADATA_KEY: agent.run_end.set,
            COLLECTOR_METADATA_KEY: observer.value.set,
        }
        for key, tell in followed.items():
            CLOCK.start(follow_key, metadata, key, tell)
        agent.run()
    except ServingError as error:
        publisher.publish(RETRYING, "", str(error))
        sys.exit(1)  # systemd starts it again
    except KeyboardInterrupt:
        shipper.write()
        sys.exit(0)


if __name__ == "__main__":
    if sys.argv[1:] == ["agent"]:
        serve_forever()
    sys.exit(launch())

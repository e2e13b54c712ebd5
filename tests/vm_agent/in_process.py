"""An agent in a thread of a test, asked as a change of the metadata asks it."""

import json
import threading
import urllib.request
from contextlib import suppress
from typing import Any

from gemma_serving.contracts.rollout import RolloutLimits
from gemma_serving.vm_agent import stored_state
from gemma_serving.vm_agent.cloud import MetadataClient
from gemma_serving.vm_agent.follow import LatestDocument
from gemma_serving.vm_agent.publishing import PhasePublisher
from gemma_serving.vm_agent.serving import Agent
from gemma_serving.vm_agent.stored_state import AgentPacing
from tests.vm_agent.machine import IMAGE, Machine, document, free_port

OTHER_IMAGE = IMAGE.replace("a" * 64, "b" * 64)


class Serving:
    """An agent in this process, with short delays, and what a reader of the machine sees."""

    def __init__(self, machine: Machine, **changes: object):
        self.machine, self.latest = machine, LatestDocument(machine.clock)
        metadata = MetadataClient(clock=machine.requests)
        # Without a probation: its own tests give it one.
        options = {
            "restart_delays_s": (0.05, 0.05),
            "prepare_delays_s": (0.05,),
            "trial_delays_s": (0.05,),
            "probation_s": 0.0,
        }
        self.agent = Agent(
            metadata,
            self.latest,
            PhasePublisher(metadata, progress_s=0.1, clock=machine.clock),
            pacing=AgentPacing(health_poll_s=0.1, **{**options, **changes}),  # pyright: ignore[reportArgumentType]
            clock=machine.clock,
        )
        self.port = free_port()
        machine.clock.start(self.agent.run)

    def ask(self, *arguments: str, limits: RolloutLimits | None = None, **changes: object) -> str:
        """Ask for a server with these arguments; return the hash of its document."""
        given = {"secretEnv": {}, "args": ["google/gemma-4-E2B-it", f"--port={self.port}", *arguments], **changes}
        text = document(self.port, **given)
        self.latest.set(text, limits.text() if limits else None)
        return stored_state.document_hash(text)

    def sees(self, phase: str, asked: str, serving: str) -> None:
        """Wait until a reader sees this phase of the asked document, and this document as the one that serves."""
        wanted = {"phase": phase, "document-hash": asked, "serving-hash": serving}
        self.machine.until(lambda: wanted.items() <= self.machine.guest().items(), f"{wanted} is published")

    def serves(self, *arguments: str, limits: RolloutLimits | None = None, **changes: object) -> str:
        """Ask for a server with these arguments, and wait until it is ready; return the hash of its document."""
        asked = self.ask(*arguments, limits=limits, **changes)
        self.sees("ready", asked, asked)
        return asked

    def good(self) -> str:
        """Serve a document until it is ready; return its hash."""
        return self.serves()

    def server_ends(self, exit_code: int = 137) -> None:
        """End the server, without another code as the kernel ends one that needs too much memory."""
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/die/{exit_code}", timeout=10).close()

    def let_go(self) -> None:
        self.latest.set(None)
        self.machine.until(
            lambda: "waiting for the metadata key" in self.machine.guest().get("detail", ""), "the agent lets go"
        )


def calls(machine: Machine, verb: str) -> list[list[str]]:
    return [call for call in machine.docker_calls() if call[0] == verb]


def seen(machine: Machine) -> list[dict[str, Any]]:
    """The arguments and the environment of each container that was started, in order."""
    return [json.loads(path.read_text()) for path in sorted(machine.root.glob("seen-*.json"))]


def written(machine: Machine, key: str) -> list[str]:
    return [value for name, value in machine.published if name == key]


def held(machine: Machine) -> threading.Event:
    """A model whose weights the hub sends once the event is set."""
    go = threading.Event()
    machine.hub.models |= {
        "org/new": {"model.safetensors": b"weights"},
        "google/gemma-4-E2B-it": {"config.json": b"{}"},
    }

    def meets(path: str) -> None:
        if path.startswith("storage/"):
            machine.hold(go)

    machine.hub.meets = meets
    return go

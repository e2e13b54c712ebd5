"""How a TPU machine starts again, with the real agent: from its disk, from the archive, and what happens if the archive is of no use.

Simulated seconds and bytes are compared, never real ones: they do not depend on this computer.
"""

import asyncio
import hashlib
import io
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from components.startup_script import agent_program
from contracts.compile_cache import ARCHIVE_PREFIX, programs_key
from contracts.guest_attributes import ARCHIVES_KEY, CONFINED, CONTAINER_KEY, FAILED, READY, WAITING_FOR_HUB
from contracts.serving_document import SCRIPT_METADATA_KEY, parse_document
from localcloud.world.scenario import Fault
from planning import Deployment, plan
from tests.agreement.test_machines import has_own_view
from tests.agreement.warm_machine import (
    ACCELERATOR,
    BUCKET,
    MODEL,
    SPEED,
    MeasuredMachine,
    MeasuredStart,
    document_of,
    measure,
    open_machine,
)
from vm_agent.archives import Archive
from vm_agent.cloud import MetadataClient
from vm_agent.kept import AgentPacing

DOCUMENT = document_of("hub")
CHECKPOINT_BYTES = plan(Deployment(model=MODEL, accelerator=ACCELERATOR)).memory.checkpoint_gib * 2**30


@pytest.fixture(autouse=True)
def own_view(tmp_path: Path) -> None:
    if not has_own_view(tmp_path / "probe"):
        pytest.skip("the system allows no mount namespaces")


def a_tar(name: str, data: bytes) -> bytes:
    out, entry = io.BytesIO(), tarfile.TarInfo(name)
    entry.size = len(data)
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def signed_by(key: str, uri: str, data: bytes) -> str:
    return Archive(MetadataClient(), uri, Path(), key).name(hashlib.sha256(data).hexdigest(), len(data))


def run(act: Callable[[MeasuredMachine], Awaitable[None]], *, weights: str = "hub", may_archive: bool = True) -> None:
    async def inside() -> None:
        async with open_machine(weights, may_archive=may_archive) as machine:  # pyright: ignore[reportArgumentType]
            machine.archives = False
            await act(machine)

    asyncio.run(inside())


@pytest.mark.long
def test_a_machine_keeps_what_it_has_and_a_new_one_gets_its_programs_from_the_archive():
    cold, kept, recompiled, crash, reboot, lost = steps = asyncio.run(measure())
    assert cold.charges_s["compile"] > 0
    assert cold.downloaded_bytes["hub"] == pytest.approx(CHECKPOINT_BYTES, rel=0.02)
    # No byte twice: what the machine fetched at its cold start, it never fetches again.
    for step in (kept, recompiled, crash, reboot):
        assert step.downloaded_bytes == {}, step.name
    # The programs of the same set are found, those of another are compiled.
    assert [("cached" in step.charges_s, "compile" in step.charges_s) for step in steps] == [
        (False, True),
        (True, False),
        (False, True),
        (True, False),
        (True, False),
        (True, False),
    ]
    # A change of a flag in place: nothing beyond the engine's own start, where 60 s are allowed.
    assert kept.beyond_engine_s == recompiled.beyond_engine_s == crash.beyond_engine_s == 0
    assert reboot.charges_s["boot"] == reboot.beyond_engine_s
    assert lost.downloaded_bytes["programs"] > 0
    assert lost.charged_s < cold.charged_s
    assert_planned_nearly(steps)


def assert_planned_nearly(steps: list[MeasuredStart]) -> None:
    """The planner and the simulator have tables of their own, so they differ; a start that one of them forgot would differ more."""
    for step in steps:
        assert step.planned_s is not None
        assert 0.7 < step.charged_s / step.planned_s < 1.3, step


@pytest.mark.long
def test_weights_of_a_bucket_are_read_once_by_the_count_of_the_server():
    document = document_of("bucket")

    async def act(machine: MeasuredMachine) -> None:
        cold = await machine.step("cold", None, lambda: machine.boot(document), document)
        assert cold.downloaded_bytes["weights"] == pytest.approx(CHECKPOINT_BYTES, rel=0.01)
        assert cold.charges_s["weights"] > 0
        for again in (machine.crash, machine.reboot):
            step = await machine.step("again", None, again, document)
            assert "weights" not in step.downloaded_bytes

    run(act, weights="bucket")


def test_a_planted_archive_is_not_read_costs_compile_time_and_is_named_once():
    async def act(machine: MeasuredMachine) -> None:
        folder = f"{ARCHIVE_PREFIX}/{ACCELERATOR}/{programs_key(parse_document(DOCUMENT))}"
        programs = a_tar("jit_step-0a-cache", b"the program of another writer")
        names = [
            f"{folder}/{hashlib.sha256(programs).hexdigest()}.tar",  # as every agent before signed archives took it
            f"{folder}/{signed_by('0f' * 32, f'gs://{BUCKET}/{folder}', programs)}",
        ]
        for name in names:
            await machine.put_object(name, programs)
        cold = await machine.step("cold", None, lambda: machine.boot(DOCUMENT), DOCUMENT)
        assert "compile" in cold.charges_s
        assert "cached" not in cold.charges_s
        line = f"2 of the objects in gs://{BUCKET}/{folder} are not signed with this stack's key"
        assert machine.agent_log().count(line) == 1
        assert machine.published(ARCHIVES_KEY).startswith(line)
        assert all("programs" not in where for where in cold.downloaded_bytes)

    run(act)


FORMER_LIMIT_S = 2 + 10 + 40 + 120
"""Delays after which the agent gave up."""


def test_an_outage_of_the_hub_longer_than_all_delays_ends_with_a_confined_server_that_is_ready():
    """The real agent, whose delays pass as fast as the cloud's clock."""
    delays = AgentPacing().restart_delays_s
    program = agent_program()
    for before, after in (
        (f"= {delays}", f"= {tuple(delay / SPEED for delay in delays)}"),
        ("waiting_delay_s: float = 300", f"waiting_delay_s: float = {300 / SPEED}"),
    ):
        assert program.count(before) == 1
        program = program.replace(before, after)

    async def act(machine: MeasuredMachine) -> None:
        machine.metadata[SCRIPT_METADATA_KEY] = program
        well, cloud = machine.cloud.scenario, machine.cloud
        cloud.scenario = well.model_copy(update={"faults": (Fault(method="hub.*", count=10**6),)})
        began = cloud.timeline.simulated_s()
        await machine.boot(DOCUMENT)
        await machine.until(lambda: machine.published("phase") == WAITING_FOR_HUB, "the phase is published")
        # On a busy machine the last lines of the first attempt may come after its end; each attempt publishes its own.
        await machine.until(lambda: "503 Server Error" in machine.published("detail"), "the hub's answer is published")
        await machine.until(lambda: f"Attempt {len(delays) + 3} while" in machine.agent_log(), "further attempts")
        assert cloud.timeline.simulated_s() - began > FORMER_LIMIT_S
        assert f"{FAILED}." not in machine.agent_log()
        cloud.scenario = well
        await machine.until(lambda: machine.published("phase") == READY, "the server is ready by itself")
        assert machine.published(CONTAINER_KEY) == CONFINED

    run(act)


@pytest.mark.long
def test_without_the_grant_the_server_serves_and_a_line_says_what_to_grant():
    async def act(machine: MeasuredMachine) -> None:
        await machine.step("cold", None, lambda: machine.boot(DOCUMENT), DOCUMENT)
        await machine.until(lambda: "Grant the machine's service account" in machine.agent_log(), "the line")
        assert "roles/storage.objectUser" in machine.agent_log()

    run(act, may_archive=False)

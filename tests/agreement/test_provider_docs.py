"""The provider's pages agree with the code."""

import re
from pathlib import Path

from gcp_tpu_provider.capacity_api import CapacityApi
from gcp_tpu_provider.compute_api import ComputeApi
from gcp_tpu_provider.reference import reference
from gcp_tpu_provider.tpu_api import TRIED_WITHOUT_FORCE, TpuApi
from gcp_tpu_provider.transport import Pacing
from vm_agent.trial import AgentPacing

DOCS = Path(__file__).parents[2] / "docs"
PROPERTIES = (DOCS / "provider-gcp-tpu-properties.md").read_text()
PAGE = (DOCS / "provider-gcp-tpu.md").read_text() + (DOCS / "authors" / "provider-gcp-tpu-internals.md").read_text()


def test_the_reference_is_the_generated_one():
    shown = PROPERTIES.partition("<!-- generated: provider-properties -->\n\n")[2].removesuffix("\n<!-- end -->\n")
    assert shown == reference(), "run `make docs`"


def test_the_limits_in_the_text_are_the_codes():
    pacing = Pacing()
    assert (pacing.poll_first_s, pacing.poll_most_s, pacing.retry_budget_s) == (0.3, 15, 120)
    assert (pacing.first_contact_s, pacing.delete_s, pacing.operation_s) == (10, 1800, 600)
    assert "The provider polls after 0.3 s at first, and later every 15 s at most." in PAGE
    assert "for two minutes per call" in PAGE
    assert "| a deletion | half an hour |" in PAGE
    assert "| a change of a node | ten minutes |" in PAGE
    assert (pacing.appear_s, pacing.late_s) == (60, 180)
    assert "| a request whose response was lost | one minute; in a deletion or a refresh three |" in PAGE
    delays = AgentPacing().restart_delays_s
    assert "restarted after {:g}, {:g}, {:g} and {:g} s".format(*delays) in PAGE


def test_the_states_and_calls_in_the_text_are_the_codes():
    sentence = next(line for line in PAGE.splitlines() if line.startswith("The provider first deletes without force"))
    assert set(re.findall(r"[A-Z_]{6,}", sentence)) == TRIED_WITHOUT_FORCE
    calls = [name for name, found in vars(CapacityApi).items() if not name.startswith("_") and callable(found)]
    assert len(calls) == 9
    assert all(callable(getattr(backend, name)) for backend in (TpuApi, ComputeApi) for name in calls)
    assert "nine calls" in PAGE

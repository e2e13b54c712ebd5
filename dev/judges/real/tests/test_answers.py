"""Part `answers`: a real vLLM and the simulated server with the words of a stack. answers.toml lists the requests and the failed starts."""

from types import SimpleNamespace

import pytest

from dev.judges.planted import refuse_planted
from dev.judges.real.agent_reading import reading_of
from dev.judges.real.answers import (
    TABLE,
    VllmReply,
    answer_to_sigterm,
    compare_answers,
    compare_flags,
    compare_metrics,
    compare_start,
    running,
    stack_words,
)
from dev.judges.real.vllm_life import installed, version


def planted_lie():
    replies = [VllmReply(status=status, headers={}, text="{}") for status in (400, 200)]
    servers = [SimpleNamespace(model="m", ask=lambda *_, reply=reply, **__: reply) for reply in replies]
    lie = "a simulated server that takes what vLLM refuses answers the same"
    refuse_planted(lie, lambda: compare_answers(TABLE["requests"][:1], *servers))


@pytest.fixture(scope="module")
def vllm(home, judge):
    found = installed(home)
    judge(f"vLLM {version(found)}")
    return found


@pytest.fixture(scope="class")
def servers(home, vllm):
    """The real server and the simulated one."""
    words = stack_words()
    with running(home, "simulated", words) as simulated, running(home, "real", words, vllm) as real:
        yield real, simulated


class TestBothServers:
    def test_answers(self, servers, notes):
        """All requests: status, type, keys, and the words of errors."""
        notes += [f"{len(TABLE['requests'])} requests", compare_answers(TABLE["requests"], *servers)]

    def test_metrics(self, servers, notes):
        """Metrics: names, types and labels."""
        notes.append(compare_metrics(*servers))

    def test_phases(self, servers):
        """Log: the phases that the agent reads."""
        real, simulated = (reading_of(server.log()).phases for server in servers)
        assert real == simulated, f"real: {' > '.join(real)}; simulated: {' > '.join(simulated)}"

    def test_sigterm(self, servers, notes):
        """SIGTERM with a running request: no new connection, exit code 0 or SIGKILL after 10 s."""
        real, simulated = map(answer_to_sigterm, servers)
        notes += [f"real: {real}", f"simulated: {simulated}"]
        assert simulated.startswith("abort"), f"the simulated server: {simulated}"


def test_flags(home, vllm, notes):
    """Flags: the simulated server accepts none that no release has."""
    notes.append(compare_flags(home, vllm))


@pytest.mark.parametrize(
    "start", TABLE["starts"], ids=lambda start: f"{start['name']}: exit code {start['exit']}, known cause"
)
def test_failed_start(start, home, vllm, notes):
    """Start that fails."""
    notes.append(compare_start(start, home, vllm))

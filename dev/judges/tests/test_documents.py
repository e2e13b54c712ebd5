"""The page of the documents' own figures has the servers that the documents ran, and the planner agrees that they ran."""

from dev.judges.accuracy import documents
from gemma_serving.planning.planner import plan, plan_of
from gemma_serving.planning.settings.image import image_of_version
from tests.planning.corpus.measured import load, subject_of


def test_document_001_ran_on_a_release_before_the_one_from_which_the_plan_blocks_its_command():
    boot = load().boot("turbo-26b-v6e-4")
    assert plan_of(subject_of(boot)).fits
    (row,) = [line for line in documents.page().splitlines() if line.startswith("| 001 | vllm serve")]
    assert '--speculative-config={"method":"ngram","num_speculative_tokens":3}' in row
    for release, blocks in (("0.22.0", False), ("0.23.0", True)):
        found = plan(boot.deployment.changed(image=image_of_version(release))).findings
        assert ("FIT05" in [finding.id for finding in found if finding.severity == "block"]) is blocks

"""A deletion against a model: drawn owners, refusals, looks and operations, in each form that Google's APIs have."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gemma_serving.cloud.deletion import delete_all
from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.cloud.kinds import by_name
from gemma_serving.contracts.search_results import FoundResource
from localcloud.tests.google_bodies import google_answer
from tests.cloud.populated import PROJECT, asker, owner
from tests.cloud.test_deletion import Patience
from tests.laws import examples

PLACE, LINK = f"projects/{PROJECT}/locations/us-east5-a", "https://www.googleapis.com/compute/v1/"
QUEUED, NODE, NETWORK, SECRET, ACCOUNT = "TPU queued resource", "TPU node", "network", "secret", "service account"
NAMES = {
    QUEUED: f"{PLACE}/queuedResources/gemma-x",
    NODE: f"{PLACE}/nodes/gemma-x",
    NETWORK: f"projects/{PROJECT}/global/networks/gemma-x",
    SECRET: f"projects/{PROJECT}/secrets/gemma-x",
    ACCOUNT: f"projects/{PROJECT}/serviceAccounts/gemma-x@{PROJECT}.iam.gserviceaccount.com",
}
DELETIONS = NAMES | {ACCOUNT: f"projects/{PROJECT}/serviceAccounts/42"}
PARAMETERS = {QUEUED: {"force": "true"}, SECRET: {"etag": "e"}}
OF_TPU, OF_COMPUTE = f"{PLACE}/operations/o", f"projects/{PROJECT}/global/operations/o"
OPERATIONS = {
    QUEUED: (OF_TPU, {"name": OF_TPU}),
    NODE: (OF_TPU, {"name": OF_TPU}),
    NETWORK: (OF_COMPUTE, {"name": "o", "selfLink": LINK + OF_COMPUTE}),
}
ERRORS = {
    QUEUED: ({"code": 9}, "{'code': 9}"),
    NODE: ({"code": 9, "message": "in use"}, "in use"),
    NETWORK: ({"errors": [{"message": "in use"}, {"message": "second"}]}, "in use"),
}
"""The error of an operation, and the words for a user. Compute Engine has a list of them."""
LIMITS_S = {QUEUED: 1800, NODE: 1800}
CONFLICTS = {400, 409, 412}


@dataclass(frozen=True)
class Case:
    """What Google answers. By default it deletes the resource at once."""

    kind: str = QUEUED
    asks: str | None = "x"
    """Stack that asks; None: all of them."""
    stack: str = "x"
    """Stack that the labels name by now."""
    is_ending: bool = False
    """True if Google deletes it already."""
    refusals: Sequence = ()
    """Of each attempt: whether the first read fails or the deletion, and the status."""
    looks: float = 0
    """Reads that still show it after its deletion."""
    last: int = 404
    """Status of the read after them."""
    fails_after: float = math.inf
    """Reads of the operation before it has failed; -1: it does not exist."""


@dataclass
class Google:
    """The answers of a case, and the deletions that it was asked for."""

    case: Case
    attempts: int = 0
    looks: int | None = None
    polls: int = 0
    deletions: list = field(default_factory=list)

    def refuse(self, *, at_read):
        refusals = dict(enumerate(self.case.refusals, 1))
        is_at_read, status = refusals.get(self.attempts, (None, 0))
        if is_at_read is at_read:
            raise GoogleListError(status, f"refused {status}", "")

    def get(self, api, path):
        if "/operations/" in path:
            return self.operation(api, path)
        assert path == by_name(self.case.kind).address(NAMES[self.case.kind])
        if self.looks is None:
            self.attempts += 1
            self.refuse(at_read=True)
            self.looks = 0 if self.case.is_ending else None
        elif self.looks == self.case.looks:
            raise GoogleListError(self.case.last, "the last read", "")
        else:
            self.looks += 1
        return google_answer("GET", f"{api}/{path}", self.document())

    def operation(self, api, path):
        name, body = OPERATIONS[self.case.kind]
        assert path == by_name(self.case.kind).address(name)
        self.polls += 1
        if self.case.fails_after < 0:
            raise GoogleListError(404, "no such operation", "")
        error = {"error": ERRORS[self.case.kind][0]} if self.polls > self.case.fails_after else {}
        return google_answer("GET", f"{api}/{path}", body | error)

    def document(self):
        own, name = owner(self.case.stack), NAMES[self.case.kind]
        labels = {"labels": dict(own.labels)}
        return {
            QUEUED: {
                "name": name,
                "tpu": {"nodeSpec": [{"node": labels}]},
                "state": {"state": "DELETING" if self.case.is_ending else "ACTIVE"},
            },
            NODE: {"name": name, "state": "DELETING" if self.case.is_ending else "READY", **labels},
            NETWORK: {"name": "gemma-x", "selfLink": LINK + name, "description": own.description},
            SECRET: {"name": name, "etag": "e", **labels},
            ACCOUNT: {"name": name, "uniqueId": "42", "description": own.description},
        }[self.case.kind]

    def delete(self, _api, path, proof, _asker, *, parameters):
        proof.require(asker(self.case.asks))
        assert proof.owners == {NAMES[self.case.kind]: owner("x")}
        assert proof.source == f"GET {by_name(self.case.kind).address(NAMES[self.case.kind])}"
        assert "name stack x of the Pulumi project gemma-serving" in proof.claim
        self.refuse(at_read=False)
        self.deletions.append((path, parameters))
        self.looks = 0
        return OPERATIONS.get(self.case.kind, ("", {}))[1]


def expected(case, pauses, said):
    """Return the outcome and its detail, and add the pauses and the lines of progress."""
    for attempt in range(6):
        at_read, status = dict(enumerate(case.refusals)).get(attempt, (None, 0))
        if at_read is not True and case.stack != "x":
            return "not owned", ""
        if at_read is None or (at_read is False and case.is_ending):
            return ended(case, pauses, said)
        if status == 404:
            return "already deleted" if at_read else "deleted", ""
        if status not in CONFLICTS:
            break
        pauses += [min(5.0, 0.2 * 3**attempt)] if attempt < 5 else []
    return "failed", f"refused {status}"


def ended(case, pauses, said):
    """Return the outcome of the wait for the end of a deletion."""
    now_s, told_s, pause_s, limit_s = 0, 0, 0.2, LIMITS_S.get(case.kind, 600)
    for look in range(10**4):
        if case.kind in OPERATIONS and not case.is_ending and look > case.fails_after >= 0:
            return "failed", ERRORS[case.kind][1]
        if look == case.looks:
            is_gone = case.last == 404 or (case.last == 403 and case.kind == ACCOUNT)
            return ("deleted", "") if is_gone else ("failed", "the last read")
        if now_s > limit_s:
            break
        if now_s - told_s >= 30:
            told_s = now_s
            said.append(f"deleting {case.kind} {NAMES[case.kind]}: {now_s} of {limit_s} s")
        pauses.append(pause_s)
        now_s += math.ceil(pause_s)
        pause_s = min(5.0, pause_s * 1.5)
    return "failed", f"still exists after {limit_s} s. Run the same command again later."


DRAWN = {
    "asks": st.sampled_from(["x", None]),
    "stack": st.sampled_from("xxxxxy"),
    "refusals": st.just([])
    | st.lists(st.tuples(st.booleans(), st.sampled_from([*CONFLICTS, 409, 412, 403, 404])), max_size=7),
    "looks": st.integers(0, 12),
    "last": st.sampled_from([404, 403, 500]),
    "fails_after": st.integers(-1, 4) | st.just(math.inf),
}
CASES = st.builds(Case, kind=st.sampled_from(sorted(NAMES)), **DRAWN)


@settings(max_examples=examples(test=150, part=1000, night=10_000))
@given(CASES | st.builds(Case, kind=st.sampled_from([QUEUED, NODE]), is_ending=st.just(True), **DRAWN))
@example(Case(refusals=[(False, 409)] * 6))
@example(Case(looks=math.inf))
@example(Case(looks=2, fails_after=-1))
@example(Case(kind=SECRET, looks=math.inf))
@example(Case(kind=ACCOUNT, looks=1, last=500))
def test_a_deletion_ends_as_googles_answers_say(case):
    google, patience, said, lines = Google(case), Patience(), [], []
    item = FoundResource(kind=case.kind, name=NAMES[case.kind], command="", owner=owner("x"))
    (deletion,) = delete_all(google, [item], asker(case.asks), report=said.append, clock=patience.clock)
    waits = []
    outcome, detail = expected(case, waits, lines)
    assert (deletion.outcome, deletion.detail) == (outcome, detail)
    assert (patience.pauses, deletion.elapsed_s) == (waits, patience.now_s)
    assert said == [*lines, f"{case.kind} {NAMES[case.kind]}: {outcome}{detail and f': {detail}'}"]
    assert deletion.timed_out is detail.startswith("still exists")
    request = (by_name(case.kind).address(DELETIONS[case.kind]), PARAMETERS.get(case.kind, {}))
    assert google.deletions in ([], [request])
    assert not google.deletions or not case.is_ending

"""Grants against a model: whose each one is, and what a removal leaves, in drawn policies."""

import shlex
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_serving.cloud.grants import PolicyHolder, accounts_of, grants_in, holder_of, without
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.proof import NotOwnedError, Proof
from localcloud.tests.google_bodies import google_body, google_request
from tests.cloud.populated import asker, owner
from tests.discovery_rules import HOLDERS
from tests.laws import examples

HOLDER = PolicyHolder(kind="project", project="p", name="projects/p")
EMAILS = {stack: f"gemma-{stack}@p.iam.gserviceaccount.com" for stack in "xyz"}
OWNERS = {EMAILS[stack]: owner(stack) for stack in "xy"}
WORDS = {stack: owner(stack).description for stack in "xy"}
CONDITIONS = [
    ({}, None),
    ({"title": "t", "expression": "true"}, None),
    ({"title": "t", "expression": "true", "description": "gemma-serving-stack=x"}, None),
    ({"title": "t", "expression": "true", "description": WORDS["x"]}, "x"),
    ({"title": "t", "expression": "false", "description": WORDS["x"]}, "x"),
    ({"title": WORDS["y"], "expression": "true"}, "y"),
]
"""Conditions, and the stack that their words name."""
MEMBERS = {f"serviceAccount:{email}": email for email in EMAILS.values()}
MEMBERS |= {f"user:{EMAILS['x']}": "", f"serviceAccount:a-{EMAILS['x']}": f"a-{EMAILS['x']}"}
"""Members, and the service account in each."""
GRANTS = [(role, number, member) for role in ("roles/a", "roles/b") for number in range(6) for member in MEMBERS]
DRAWN = st.sets(st.sampled_from(GRANTS)).map(sorted)


def policy_of(grants, *, are_deleted=False):
    """Return a policy with one binding of each role and condition."""
    bindings = {}
    for role, number, member in grants:
        condition = CONDITIONS[number][0]
        new = {"role": role, "members": [], **({"condition": condition} if condition else {})}
        is_deleted = are_deleted and MEMBERS[member]
        bindings.setdefault((role, number), new)["members"].append(f"deleted:{member}?uid=4" if is_deleted else member)
    document = {"bindings": [*bindings.values()], "etag": "BwX=", "version": 3}
    return google_body("cloudresourcemanager.v1", "Policy", document)


def stack_of(grant, owners=OWNERS):
    """Return the stack that the words of a grant's condition name, otherwise the one of its account."""
    of_account = owners.get(MEMBERS[grant[2]])
    return CONDITIONS[grant[1]][1] or (of_account and of_account.stack)


def grant_of(found):
    """Return a found grant as it was drawn."""
    conditions = [condition for condition, _ in CONDITIONS]
    document = found.document
    return document["role"], conditions.index(document["condition"]), document["member"]


@settings(max_examples=examples(test=100, part=1000, night=10_000))
@given(DRAWN, DRAWN, st.booleans(), st.sampled_from([*map(owner, "xxy"), None]), st.booleans())
def test_a_removal_leaves_each_grant_that_is_not_its_stacks(before, now, are_deleted, x_now, are_stated):
    """Between a search and a removal the policy, the accounts and their owners can change."""
    found = [*grants_in(policy_of(before), HOLDER, OWNERS)]
    wanted = {grant: stack_of(grant) for grant in before if stack_of(grant)}
    assert sorted((grant_of(one), one.owner.stack) for one in found) == sorted(wanted.items())
    assert {*accounts_of(found)} == {MEMBERS[member] for *_, member in wanted} - {""}
    if are_stated:
        found = [replace(one, document={**one.document, "stated": True}) for one in found]
    owners = {email: one for email, one in {**OWNERS, EMAILS["x"]: x_now}.items() if one}

    def is_removed(grant):
        stack = stack_of(grant, owners)
        return grant in wanted and (stack == wanted[grant] or (stack is None and are_stated))

    after, proof = without(policy_of(now, are_deleted=are_deleted), HOLDER, found, owners)
    kept = [grant for grant in now if not is_removed(grant)]
    assert after == policy_of(kept, are_deleted=are_deleted)
    if (removed := [grant for grant in now if is_removed(grant)]) or proof:
        emails = {one.name: MEMBERS[one.document["member"]] for one in found if grant_of(one) in removed}
        names = {f"projects/-/serviceAccounts/{email}" if email else name for name, email in emails.items()}
        assert proof.owners.keys() == names
        for grant in removed:
            assert f"projects/p {grant[0]} {grant[2]} of stack {wanted[grant]}" in proof.claim


@given(
    st.dictionaries(st.sampled_from(["title", "description", "expression"]), st.text("a ,|#~;@'\"=", min_size=1)),
    st.sampled_from(["project", "bucket", "secret"]),
)
def test_the_command_of_a_grant_names_its_condition_as_gcloud_reads_it(condition, kind):
    words = shlex.split(PolicyHolder(kind=kind, project="p", name="projects/p/x/b").command("r", "user:a b", condition))
    start = next(at for at, word in enumerate(words) if word.startswith("--member"))
    assert words[start : start + 2] == ["--member=user:a b", "--role=r"]
    flags = words[start + 2 :]
    if not condition:
        assert flags == ([] if kind == "bucket" else ["--condition=None"])
        return
    text = flags[0].removeprefix("--condition=")
    _, separator, text = text.split("^", 2) if text.startswith("^") else ("", ",", text)
    assert dict(one.split("=", 1) for one in text.split(separator)) == condition


class Calls:
    """An API that records its calls and answers none of them. Google's documents have the methods and their bodies."""

    def __init__(self):
        self.made = []

    def change(self, verb, api, path, *, body):
        self.made.append((verb, api, path, google_request(verb, f"{api}/{path}", body)))

    def post(self, api, path, body):
        self.change("POST", api, path, body=body)
        return POLICY

    def get(self, api, path):
        self.change("GET", api, path, body={})
        return POLICY


POLICY = {"bindings": [], "etag": "BwX="}
AS_IT_IS = {**POLICY, "version": 3}
NAMES = {
    "projects/p",
    "projects/_/buckets/b",
    "projects/p/secrets/s",
    "projects/p/serviceAccounts/a@p.iam.gserviceaccount.com",
    "projects/p/locations/l/repositories/r",
    "projects/p/locations/l/services/n",
}


def test_a_grant_of_each_type_names_its_holder():
    """tests/discovery_rules.py compares their paths with Google's discovery documents."""
    assert {holder.name for holder in HOLDERS} == NAMES
    assert {holder.project for holder in HOLDERS} == {"p"}
    theirs = holder_of("gcp:secretmanager/secretIamMember:SecretIamMember", {"secretId": "projects/q/secrets/s"}, "p")
    assert (theirs.project, theirs.name) == ("q", "projects/q/secrets/s")
    bucket = holder_of("gcp:storage/bucketIAMMember:BucketIAMMember", {"bucket": "projects/b"}, "p")
    assert (bucket.project, bucket.name) == ("p", "projects/_/buckets/b")
    for holder in HOLDERS:
        words = holder.command("roles/r", "user:a", {})
        assert holder.name.rpartition("/")[2] in words
        assert ("location=l" in words or "region=l" in words) is ("/locations/" in holder.name)


@pytest.mark.parametrize(
    ("holder", "read", "written"),
    [
        (
            HOLDER,
            ("POST", "cloudresourcemanager", "v1/projects/p:getIamPolicy", {"options": {"requestedPolicyVersion": 3}}),
            ("POST", "cloudresourcemanager", "v1/projects/p:setIamPolicy", {"policy": AS_IT_IS}),
        ),
        (
            PolicyHolder(kind="bucket", project="p", name="projects/_/buckets/b"),
            ("GET", "storage", "storage/v1/b/b/iam?optionsRequestedPolicyVersion=3", {}),
            ("PUT", "storage", "storage/v1/b/b/iam", AS_IT_IS),
        ),
        (
            PolicyHolder(kind="secret", project="p", name="projects/1/secrets/s"),
            ("GET", "secretmanager", "v1/projects/1/secrets/s:getIamPolicy?options.requestedPolicyVersion=3", {}),
            ("POST", "secretmanager", "v1/projects/1/secrets/s:setIamPolicy", {"policy": AS_IT_IS}),
        ),
    ],
)
def test_a_policy_is_read_with_its_conditions_and_written_back_whole(holder, read, written):
    calls, proof = Calls(), Proof(claim="c", source="s", owners={"n": owner("x")})
    holder.read(calls)
    holder.write(calls, POLICY, proof, asker("x"))
    assert calls.made == [read, written]
    with pytest.raises(NotOwnedError):
        holder.write(calls, POLICY, proof, asker("y"))
    assert len(calls.made) == 2


def test_a_policy_of_another_form_is_never_written_back():
    with pytest.raises(ScriptError, match="bindings is not a list"):
        without({"bindings": {}, "etag": "e"}, HOLDER, [], OWNERS)

"""Laws about what Google has of stacks: what their states name, what of it exists, and what a search covers and does not know."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.cloud.grants import PolicyHolder, bare, found_grant
from gemma_serving.cloud.kinds import GRANT, NODE, QUEUED
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.resource_types import CAPACITY_TYPE
from gemma_serving.contracts.search_results import FoundResource, Inventory
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.stack import labelled
from gemma_serving.scripts.stack.labelled import (
    SearchedStacks,
    existing_creations,
    search_stacks,
    searched_stacks,
    unstated,
    without_state,
)
from tests.cloud.populated import asker, owner
from tests.cloud.test_grant_laws import CONDITIONS, DRAWN, EMAILS, policy_of
from tests.laws import examples

ZONE, ELSEWHERE = "projects/p/locations/z", "projects/12/locations/z"
GRANT_TYPE = "gcp:projects/iAMMember:IAMMember"
law = settings(max_examples=examples(test=100, part=500, night=5000))


def found(kind, name, **document):
    return FoundResource(kind=kind, name=name, command="", owner=owner("x"), document=document)


def granted(member, **more):
    holder = PolicyHolder(kind="project", project="p", name="projects/p")
    grant = found_grant(holder, "roles/a", member, {}, owner("x"))
    return replace(grant, document={**grant.document, **more})


def entry(type_, id_="", inputs=None, outputs=None):
    return {"type": type_, "urn": "u", "id": id_, "inputs": inputs or {}, "outputs": outputs or {}}


SECRET, BUCKET = "gcp:secretmanager/secret:Secret", "gcp:storage/bucket:Bucket"
ALERTS, ACCOUNT = "gcp:monitoring/alertPolicy:AlertPolicy", "gcp:serviceaccount/account:Account"
MEMBERS = ["user:a@b.com", "deleted:serviceAccount:a@p.iam.gserviceaccount.com?uid=4", f"serviceAccount:{EMAILS['x']}"]
STATED = [
    (found("secret", "projects/12/secrets/i"), "resources", entry(SECRET, "projects/p/secrets/i")),
    (found("secret", "projects/12/secrets/s"), "resources", entry(SECRET, inputs={"project": "p", "secretId": "s"})),
    (found("secret", "projects/12/secrets/b"), "pending", entry(SECRET, inputs={"project": "p", "secretId": "b"})),
    (
        found("alert policy", "projects/p/alertPolicies/1", displayName="d"),
        "pending",
        entry(ALERTS, inputs={"displayName": "d"}),
    ),
    (
        found(QUEUED, f"{ELSEWHERE}/queuedResources/r"),
        "resources",
        entry(CAPACITY_TYPE, outputs={"name": f"{ZONE}/queuedResources/r"}),
    ),
    (found(NODE, f"{ELSEWHERE}/nodes/n"), "resources", entry(CAPACITY_TYPE, outputs={"nodeName": f"{ZONE}/nodes/n"})),
    (
        found(NODE, f"{ELSEWHERE}/nodes/of-m", queuedResource=f"{ELSEWHERE}/queuedResources/m"),
        "resources",
        entry(CAPACITY_TYPE, outputs={"name": f"{ZONE}/queuedResources/m"}),
    ),
    (
        found(QUEUED, f"{ELSEWHERE}/queuedResources/t"),
        "resources",
        entry(
            CAPACITY_TYPE,
            inputs={"project": "p", "queuedResourceId": "t"},
            outputs={"zone": "a", "triedZones": ["z", ""]},
        ),
    ),
    (
        found(QUEUED, f"{ELSEWHERE}/queuedResources/q"),
        "pending",
        entry(CAPACITY_TYPE, inputs={"project": "p", "queuedResourceId": "q", "zones": ["a", "z"]}),
    ),
    (granted(MEMBERS[0]), "resources", entry(GRANT_TYPE, inputs={"role": "roles/a", "member": MEMBERS[0]})),
    (granted(MEMBERS[1]), "resources", entry(GRANT_TYPE, inputs={"role": "roles/a", "member": bare(MEMBERS[1])})),
    (granted(MEMBERS[2]), "resources", entry(ACCOUNT, f"projects/p/serviceAccounts/{EMAILS['x']}")),
]
"""A found resource, and the entry of a state that names it: some APIs have the project's number, and a state its id."""


def state(**more):
    return StackState(stack="x", status="read", projects=("p",), **more)


@law
@given(st.sets(st.integers(0, len(STATED) - 1)))
def test_a_state_names_exactly_the_resources_of_its_entries(chosen):
    entries = {"resources": [], "pending": []}
    for number in chosen:
        entries[STATED[number][1]].append(STATED[number][2])
    stacks = SearchedStacks(stack="x", states=[state(**entries)], settings={}, projects=["p"], is_name_known=True)
    every = [one for one, _, _ in STATED]
    others = [one for number, one in enumerate(every) if number not in chosen]
    assert unstated(stacks, [*every, granted("user:s@b.com", stated=True)]) == others


BEGUN = [
    (entry(SECRET, inputs={"project": "p2", "secretId": "s"}), ["projects/p2/secrets/s"], "p2"),
    (entry(BUCKET, inputs={"name": "b"}), ["projects/_/buckets/b"], "p"),
    (
        entry(CAPACITY_TYPE, inputs={"project": "p2", "queuedResourceId": "q", "zones": ["a", "z"]}),
        [f"projects/p2/locations/{zone}/queuedResources/q" for zone in "az"],
        "p2",
    ),
]
"""Begun creations, the names that they can have, and the project of a found one."""
NAMES = [name for _, names, _ in BEGUN for name in names]


class Google:
    """Whose each resource is by now, or the status of its read, and the policy of the project or its status."""

    def __init__(self, owners, policy):
        self.owners, self.policy, self.read = owners, policy, 0

    def get(self, _api, path):
        name = next(name for name in NAMES if path.endswith(name.rpartition("/buckets/")[2]))
        if isinstance(self.owners[name], int):
            raise GoogleListError(self.owners[name], "refused", "")
        labels = {"labels": dict(owner(self.owners[name]).labels)}
        return {"name": name.rpartition("/buckets/")[2], "tpu": {"nodeSpec": [{"node": labels}]}, **labels}

    def post(self, _api, path, _body):
        self.read += 1
        assert path == "v1/projects/p:getIamPolicy"
        if isinstance(self.policy, int):
            raise GoogleListError(self.policy, "refused", "")
        return policy_of(self.policy)


@law
@given(
    owners=st.fixed_dictionaries({name: st.sampled_from(["x", "x", "before", "y", 404, 403, 500]) for name in NAMES}),
    is_renamed=st.booleans(),
    granted=DRAWN,
    policy=DRAWN | st.sampled_from([404, 403]),
    pending=st.integers(0, 3),
)
def test_what_was_begun_is_found_by_its_address_and_a_grant_by_the_projects_policy(
    owners, is_renamed, granted, policy, pending
):
    """Google returns 403 for a location that does not exist, and another owner may have a name by now."""
    inputs = [(role, CONDITIONS[number][0], member) for role, number, member in granted]
    entries = [
        entry(
            GRANT_TYPE,
            inputs={"project": "p", "role": role, "member": member, "condition": {**condition, "__defaults": []}},
        )
        for role, condition, member in inputs
    ]
    former = [entry(SECRET, inputs={"labels": owner("before").labels})] if is_renamed else []
    google = Google(owners, policy)
    known = state(
        pending=[*entries[:pending], *(begun for begun, _, _ in BEGUN)], resources=[*former, *entries[pending:]]
    )
    ours = {"x", "before"} if is_renamed else {"x"}
    expected = [(name, project) for _, names, project in BEGUN for name in names if owners[name] in ours]
    if 500 in owners.values() or (policy == 403 and granted):
        with pytest.raises(ScriptError, match="refused"):
            [*existing_creations(google, known)]
        return
    both = [grant for grant in granted if isinstance(policy, list) and grant in policy]
    found = [*existing_creations(google, known)]
    assert [(one.name, one.project) for one in found if one.kind != GRANT] == expected
    grants = [one for one in found if one.kind == GRANT]
    assert [(one.document["role"], one.document["condition"], one.document["member"]) for one in grants] == [
        (role, CONDITIONS[number][0], member) for role, number, member in both
    ]
    assert all((one.owner, one.labels, one.document["stated"]) == (owner("x"), {}, True) for one in grants)
    assert google.read == bool(granted)


CHIPS = {"type": CAPACITY_TYPE, "inputs": {}}
INSTANCES = {"type": CAPACITY_TYPE, "inputs": {"api": "compute-engine"}}
APIS = [
    (entry(SECRET), "secretmanager"),
    (CHIPS, "tpu"),
    (INSTANCES, "compute"),
    (entry(GRANT_TYPE), "cloudresourcemanager"),
]
APIS += [(entry("gemma:Gateway"), None), (entry("gcp:projects/service:Service"), "cloudresourcemanager")]
"""Entries of a state, and the API of each."""


def settings_of(apis=(), zones=None, existing=None):
    """Return the settings of a stack, as far as a search reads them."""
    tpu = None if zones is None else SimpleNamespace(zones=zones)
    bucket = SimpleNamespace(existing=existing)
    return SimpleNamespace(project="of-settings", tpu=tpu, regions=["r"], bucket=bucket, apis=apis)


PART = st.lists(st.sampled_from(APIS), max_size=2)
STACKS = st.lists(
    st.fixed_dictionaries(
        {
            "resources": PART,
            "pending": PART,
            "apis": st.none() | st.sampled_from([(), ("run",), ("tpu", "iam")]),
            "former": st.sampled_from(["", "before"]),
            "zones": st.none() | st.just(["z1"]),
            "bucket": st.none() | st.just("weights"),
        }
    ),
    max_size=3,
)
"""Contents of the state and the settings of each stack; without APIs, it has none."""


@law
@given(STACKS)
def test_a_search_covers_the_apis_places_names_and_buckets_of_states_and_settings(stacks):
    """It covers every API if a stack has neither resources nor settings."""
    states, known = [], {}
    for number, one in enumerate(stacks):
        named = [entry("gemma:Named", inputs={"labels": owner(one["former"]).labels})] if one["former"] else []
        resources = [*named, *(item for item, _ in one["resources"])]
        pending = [item for item, _ in one["pending"]]
        states.append(StackState(stack=f"s{number}", status="read", resources=resources, pending=pending))
        if one["apis"] is not None:
            known[f"s{number}"] = settings_of(one["apis"], one["zones"], one["bucket"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labelled, "apis_of", lambda one: one.apis)
        scope = SearchedStacks(stack=None, states=states, settings=known, projects=["p"], is_name_known=True).scope([])
    stated = [{api for _, api in (*one["resources"], *one["pending"]) if api} for one in stacks]
    has_neither = any(one["apis"] is None and not apis for one, apis in zip(stacks, stated, strict=True))
    every = {api for one in stacks for api in one["apis"] or ()}.union(*stated)
    assert scope.apis == (None if has_neither else frozenset(every) or None)
    assert [*scope.stacks] == [
        name for number, one in enumerate(stacks) for name in (f"s{number}", one["former"]) if name
    ]
    given_settings = [one for one in stacks if one["apis"] is not None]
    regions = ["r" for _ in given_settings]
    zones = [zone for one in given_settings for zone in one["zones"] or ()]
    assert scope.places == {"tpu": zones, "run": regions, "artifactregistry": regions}
    assert [*scope.buckets] == [one["bucket"] for one in given_settings if one["bucket"]]


@law
@given(
    st.none() | st.just("s0"),
    st.lists(
        st.tuples(
            st.sampled_from(["read", "missing", "unreadable", "cut off", "no engine"]),
            st.booleans(),
            st.booleans(),
            st.booleans(),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_what_cannot_be_read_of_a_stack_is_named_and_may_hide_its_former_name(stack, drawn):
    """Each state has a status, and perhaps content, a file and settings."""
    states = [
        StackState(
            stack=f"s{number}",
            status="unreadable" if status == "cut off" else status,
            detail="No.",
            is_cut_off=status == "cut off",
            projects=("p",),
            raw={"a": 1} if has_raw else {},
        )
        for number, (status, has_raw, _, _) in enumerate(drawn)
    ]
    files = {f"s{number}": "text" if has_file else "" for number, (_, _, has_file, _) in enumerate(drawn)}
    known = {f"s{number}": settings_of() for number, (*_, has_settings) in enumerate(drawn) if has_settings}

    def read(name):
        if name not in known:
            raise CommandRefusedError(f"{name} has no file.")
        return known[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labelled, "stack_settings", read)
        patch.setattr(labelled, "file_text", files.get)
        patch.setattr(labelled, "project_from_environment", lambda: "of-environment")
        patch.setattr(labelled, "remembered", lambda state: state)
        found = searched_stacks(stack, states)
    errors = []
    for name, (status, _, _, has_settings) in zip(files, drawn, strict=True):
        if status == "missing":
            errors += [f"Stack {name} has no state. Continuing without the state."] if stack else []
        elif status != "read":
            cut_off = f"The state of stack {name} is incomplete, so it cannot be read."
            errors.append(f"{cut_off if status == 'cut off' else 'No.'} Continuing without the state.")
        errors += [] if has_settings else [f"{name} has no file. Continuing without the settings."]
    is_lost = any(
        not has_raw and (status in {"unreadable", "cut off"} or has_file) for status, has_raw, has_file, _ in drawn
    )
    assert [*found.read_errors] == [*dict.fromkeys(errors)]
    assert found.settings == known
    assert [*found.projects] == ["p", *(["of-settings"] if known else []), "of-environment"]
    assert found.is_name_known is (stack is None or not is_lost)


@law
@given(
    is_name_known=st.booleans(),
    others=st.frozensets(st.sampled_from(["former", "a"])),
    backend=st.sampled_from([frozenset(), frozenset({"a", "x"}), None]),
    owners=st.lists(st.sampled_from("xy"), max_size=2, unique=True),
    error=st.sampled_from([None, "no answer", "refused"]),
    unread=st.lists(st.sampled_from(["A list: refused", "another list"]), unique=True),
)
def test_a_search_is_unknown_with_its_lists_its_begun_creations_and_its_name(
    *, is_name_known, others, backend, owners, error, unread
):
    """Other stacks' resources may be the stack's under a former name, unless the backend has these stacks."""
    listed = [replace(found("bucket", stack), owner=owner(stack)) for stack in owners]
    begun = [found("bucket", "x"), found("secret", "begun")]

    def creations(_api, _state):
        yield from begun
        if error:
            raise ScriptError(error)

    scope = SearchedStacks(stack="x", states=[state()], settings={}, projects=["p"], is_name_known=is_name_known)
    inventory = Inventory(asker=asker("x"), found=listed, calls=(), unknown=unread, elapsed_s=1, others=others)

    def listed_stacks(*_words):
        if backend is None:
            raise ScriptError("no backend")
        return backend

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labelled, "search", lambda *_, **__: inventory)
        patch.setattr(labelled, "existing_creations", creations)
        patch.setattr(labelled, "listed_stacks", listed_stacks)
        result = search_stacks(None, scope)
    sentences = [*unread]
    if not is_name_known and "x" not in owners:
        sentences += [
            f"Stack {name} has resources and no state: if x, whose state cannot be read, was renamed from {name}, "
            f"`gemma teardown {name}` deletes them."
            for name in sorted(others - (backend or frozenset()))
        ]
    if error and not (error == "refused" and "A list: refused" in unread):
        sentences.append(f"Could not check the pending operations in the state of x: {error}")
    assert [*result.unknown] == sentences
    buckets = sorted({"x", *owners}, key=["x", *owners].index)
    assert [one.name for one in result.found] == ["begun", *buckets]


@law
@given(
    st.lists(st.sampled_from(["", "2026-11-20T12:34:56Z"]), max_size=2),
    st.sampled_from(["", "file://here", "gs://there"]),
)
def test_what_no_state_has_is_named_with_its_place_its_age_and_its_backend(created, before):
    servers = [
        replace(found(NODE, f"n{number}"), location=f"z{number}", created=one) for number, one in enumerate(created)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labelled, "backend_of_run", lambda _: before)
        patch.setattr(labelled, "shown_url", lambda: "file://here")
        patch.setattr(labelled, "found_sentence", lambda every, unread: f"{len(every)} resources.{unread}")
        text = without_state("x", [found("secret", "s"), *servers], " No list.")
    start = "Google has resources of stack x"
    if servers:
        start = "Stack x runs in z0" + (" since 2026-11-20 12:34 UTC" if created[0] else "")
    where = " This folder deployed it with `pulumi login gs://there`." if before == "gs://there" else ""
    assert text == f"{start}. {len(servers) + 1} resources. No list. The backend file://here has no state of it.{where}"

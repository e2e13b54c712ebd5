"""Laws about a search, against a model: whose each listed resource and grant is, what uses a network, and what was not read."""

import re
from urllib.parse import unquote

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gemma_serving.cloud.google_api import GoogleListError, answer_of
from gemma_serving.cloud.kinds import KINDS, by_name
from gemma_serving.cloud.search import Scope, search
from gemma_serving.contracts.labels import Ownership
from tests.cloud.populated import asker, owner
from tests.cloud.test_deletion import Patience
from tests.cloud.test_grant_laws import CONDITIONS, DRAWN, EMAILS, MEMBERS, policy_of
from tests.laws import examples

LINK, Z1, Z2 = "https://www.googleapis.com/compute/v1/", "projects/p/locations/z1", "projects/p/locations/z2"
OWNERS = [
    owner("x"),
    owner("y"),
    Ownership(project="billing", stack="x"),
    Ownership(project="billing", stack="y"),
    None,
]
law = settings(max_examples=examples(test=100, part=500, night=5000))


class Google:
    """Lists by their path, policies by their holder, and the APIs that are enabled. What is not named is empty."""

    def __init__(self, lists, policies=None, enabled=()):
        self.asked = set()
        self.lists, self.policies, self.enabled, self.read = lists, policies or {}, enabled, []

    def pages(self, _api, path):
        start = path.partition("?")[0]
        self.read.append(start)
        page = self.lists.get(start, {"locations": [{"locationId": "z9"}]} if start.endswith("/locations") else {})
        if isinstance(page, Exception):
            raise page
        yield page

    def get(self, api, path):
        if api == "serviceusage":
            asked = {*re.findall(r"projects/(\w+)/services/(\w+)\.", unquote(path))}
            self.asked |= asked
            names = [f"projects/1/services/{api}.googleapis.com" for of, api in asked if (of, api) in self.enabled]
            return {"services": [{"name": name, "state": "ENABLED"} for name in names]}
        self.read.append(path.partition("?")[0])
        return {"etag": "e", **self.policies.get(path.partition("?")[0], {})}

    def post(self, api, path, _body):
        return self.get(api, path)


def document(kind, number, own, network):
    """Return a resource, of a project that Secret Manager and others name by its number, and the path of its list."""
    labels, words = ({"labels": dict(own.labels)}, {"description": own.description}) if own else ({}, {})
    uses = {} if network is None else {"network": f"{LINK}projects/p/global/networks/n{network}"}
    return {
        "network": (
            "compute/v1/projects/p/global/networks",
            {"selfLink": f"{LINK}projects/p/global/networks/n{number}", **words},
        ),
        "firewall rule": (
            "compute/v1/projects/p/global/firewalls",
            {"selfLink": f"{LINK}projects/p/global/firewalls/f{number}", **uses, **words},
        ),
        "subnetwork": (
            "compute/v1/projects/p/aggregated/subnetworks",
            {"selfLink": f"{LINK}projects/p/regions/r/subnetworks/i{number}", **uses, **words},
        ),
        "secret": ("v1/projects/p/secrets", {"name": f"projects/1/secrets/s{number}", **labels}),
        "bucket": ("storage/v1/b", {"name": f"b{number}", "location": "US", **labels}),
        "TPU node": (
            f"v2alpha1/{Z1}/nodes",
            {
                "name": f"{Z1}/nodes/m{number}",
                "networkConfig": {
                    "network": f"projects/99/global/networks/n{network}",
                    "subnetwork": f"projects/99/regions/r/subnetworks/i{network}",
                },
                **labels,
            },
        ),
        "Cloud Run service": (
            f"v2/{Z2}/services",
            {"name": f"{Z2}/services/r{number}", "template": dict.fromkeys(uses, f"n{network}"), **labels},
        ),
    }[kind]


RESOURCES = st.lists(
    st.tuples(
        st.sampled_from(
            ["network", "network", "firewall rule", "subnetwork", "secret", "bucket", "TPU node", "Cloud Run service"]
        ),
        st.integers(0, 1),
        st.sampled_from([owner("x"), *OWNERS]),
        st.none() | st.integers(0, 1),
    ),
    max_size=12,
    unique_by=lambda drawn: drawn[:2],
)


def listed(resources):
    """Return the page of each list, as each API has it."""
    lists = {"v2alpha1/projects/p/locations": {"locations": [{"locationId": "z1"}]}}
    for kind, number, own, network in resources:
        path, item = document(kind, number, own, network)
        key = by_name(kind).items
        if kind == "subnetwork":
            scopes = lists.setdefault(path, {"items": {"regions/empty": {}, "regions/r": {key: []}}})
            scopes["items"]["regions/r"][key].append(item)
        else:
            lists.setdefault(path, {key: []})[key].append(item)
    return lists


@law
@given(
    RESOURCES,
    st.sampled_from(["x", None]),
    DRAWN,
    st.dictionaries(st.sampled_from("xyz"), st.sampled_from(OWNERS)),
    st.booleans(),
)
@example([("subnetwork", 0, owner("x"), None), ("TPU node", 0, owner("y"), 0)], "x", [], {}, False)
@example([("secret", 0, OWNERS[2], None)], None, [("roles/a", 0, f"serviceAccount:{EMAILS['x']}")], {}, False)
def test_a_search_finds_what_is_the_askers_and_names_who_else_uses_it(resources, stack, granted, accounts, is_kept):
    lists = listed(resources)
    emails = [
        {
            "name": f"projects/p/serviceAccounts/{EMAILS[of]}",
            "email": EMAILS[of],
            "description": own.description if own else "mine",
        }
        for of, own in accounts.items()
    ]
    lists["v1/projects/p/serviceAccounts"] = {"accounts": emails}
    google = Google(lists, {"v1/projects/p:getIamPolicy": policy_of(granted)})
    names = {drawn: by_name(drawn[0]).name(document(*drawn)[1]) for drawn in resources}
    kept = [name for drawn, name in names.items() if drawn[0] == "bucket"] if is_kept else []
    scope = Scope(
        projects=["p"], asker=asker(stack), stacks=["y"], places={"run": ["z2"]}, buckets=["b0", "theirs"], kept=kept
    )
    found = search(google, scope, clock=Patience().clock)
    assert found.unknown == ()

    def is_owned(own):
        return own is not None and own.project == "gemma-serving" and stack in {None, own.stack}

    owned = {(drawn[0], name) for drawn, name in names.items() if is_owned(drawn[2])}
    owned |= {
        ("service account", f"projects/p/serviceAccounts/{EMAILS[of]}") for of, own in accounts.items() if is_owned(own)
    }
    of_search = [*map(owner, {"y", *filter(None, [stack])}), *(own for _, _, own, _ in resources if is_owned(own))]
    of_search += [own for own in accounts.values() if is_owned(own)]
    owners = {EMAILS[own.stack]: own for own in of_search if own.stack not in accounts}
    owners |= {EMAILS[of]: own for of, own in accounts.items() if own}
    grants = []
    for grant in granted:
        words = CONDITIONS[grant[1]][1]
        own = owner(words) if words else owners.get(MEMBERS[grant[2]])
        grants += [(own, f"projects/p {grant[0]} {grant[2]}")] if own else []
    assert sorted((item.kind, item.name) for item in found.found) == sorted(
        [*owned, *(("IAM grant", name) for own, name in grants if is_owned(own))]
    )
    assert [item.kind for item in found.found] == sorted(item.kind for item in found.found)
    others = [(own, name) for (_, _, own, _), name in names.items()] + grants
    others += [(own, f"projects/p/serviceAccounts/{EMAILS[of]}") for of, own in accounts.items()]
    foreign = [name for own, name in others if own and own.project == "billing" and stack in {None, own.stack}]
    assert sorted(item.name for item in found.foreign) == sorted(foreign)
    ours = {own.stack for own, _ in others if own and own.project == "gemma-serving"}
    assert found.others == (ours - {stack} if stack else set())
    networks = {number: is_owned(own) for kind, number, own, _ in resources if kind == "network"}
    users = {number: [] for number in networks}
    guests = []
    for drawn, name in names.items():
        if drawn[0] in {"firewall rule", "subnetwork", "TPU node", "Cloud Run service"} and drawn[3] in networks:
            users[drawn[3]].append(name)
            guests += [name] if networks[drawn[3]] and drawn[2] and not is_owned(drawn[2]) else []
    assert sorted(item.name for item in found.guests) == sorted(guests)
    assert {name: sorted(each) for name, each in found.users.items()} == {
        **{f"projects/p/global/networks/n{number}": sorted(users[number]) for number, mine in networks.items() if mine},
        **{
            name: sorted(of for node, of in names.items() if node[0] == "TPU node" and node[3] == drawn[1])
            for drawn, name in names.items()
            if drawn[0] == "subnetwork" and is_owned(drawn[2])
        },
    }
    counts = {kind.kind: sum(drawn[0] == kind.kind for drawn in resources) for kind in KINDS} | {
        "service account": len(accounts)
    }
    calls = {kind: sum(call.items for call in found.calls if call.kind == kind) for kind in counts}
    assert calls == counts
    of_paths = {call.path: (call.kind, call.items) for call in found.calls}
    assert of_paths["v1/projects/p:getIamPolicy"] == ("IAM grant", len(policy_of(granted)["bindings"]))
    assert of_paths["v2alpha1/projects/p/locations"] == ("locations of tpu", 1)
    stays = {
        name
        for drawn, name in names.items()
        if drawn[0] in {"bucket", "secret"} and (not is_owned(drawn[2]) or name in kept)
    }
    buckets = {"projects/_/buckets/b0", "projects/_/buckets/theirs"} - ({*names.values()} - stays)
    policies = {f"storage/v1/b/{name.rpartition('/')[2]}/iam" for name in buckets | stays if "/buckets/" in name}
    policies |= {f"v1/{name}:getIamPolicy" for name in stays if "/secrets/" in name}
    assert {path for path in google.read if path.endswith(("/iam", ":getIamPolicy"))} == {
        *policies,
        "v1/projects/p:getIamPolicy",
    }


def of_tpu(project, zone, kind):
    return f"v2alpha1/projects/{project}/locations/{zone}/{kind}"


LISTS = [
    *(
        (kind, api, project, path.format(project))
        for project in ("p", "q")
        for kind, api, path in [
            ("alert policy", "monitoring", "v3/projects/{}/alertPolicies"),
            ("router", "compute", "compute/v1/projects/{}/aggregated/routers"),
            ("network", "compute", "compute/v1/projects/{}/global/networks"),
            ("secret", "secretmanager", "v1/projects/{}/secrets"),
        ]
    ),
    *(
        (kind, "tpu", project, of_tpu(project, zone, path))
        for project, zones in (("p", ("z1", "z2")), ("q", ("z2",)))
        for kind, path in (("TPU queued resource", "queuedResources"), ("TPU node", "nodes"))
        for zone in zones
    ),
]
"""Kind, API, project and path of lists in the order in which a search has them. No API lists the zone z2."""
ERRORS = {
    "denied": GoogleListError(403, "Permission x.list denied", "IAM_PERMISSION_DENIED"),
    "off": GoogleListError(403, "The API is off", "SERVICE_DISABLED"),
    "broken": GoogleListError(500, "Google at https://a failed", ""),
    "late": GoogleListError(504, "no response", ""),
}
OMITTING = {"unreachable": ["a"]}, {"unreachables": ["a"]}, {"warning": {"code": "UNREACHABLE", "message": "a"}}
SCOPES = {"items": {"a": {"warning": {"code": "UNREACHABLE"}}, "b": {"warning": {"code": "NO_RESULTS_ON_PAGE"}}}}
PAGES = {"omits": lambda kind: SCOPES if kind == "router" else OMITTING[len(kind) % 3]}
PAGES["of another form"] = lambda kind: (
    {by_name(kind).items: "none"} if kind != "router" else {"items": {"a": {"routers": 0}}}
)
"""Pages by what is wrong with them: they leave out a place, each in a way that Google has, or have another form."""
ANSWERS = st.lists(st.sampled_from([None, None, *ERRORS, *PAGES]), min_size=len(LISTS), max_size=len(LISTS))


def why_of(api, kind, answer):
    """Return why a list is unknown."""
    if isinstance(answer, dict):
        return f"Google returned an invalid response: {by_name(kind).items} is not a list."
    return answer_of(api, lambda: next(Google({"": answer}).pages("", ""))).why


@law
@given(ANSWERS | st.sampled_from([*ERRORS, *PAGES]).map(lambda one: [one] * len(LISTS)), st.booleans(), st.booleans())
def test_each_list_that_was_not_read_is_named_once_with_its_cause(answers, is_stated, are_apis_known):
    """Lists with one cause are one sentence, and an API that no stack uses has nothing of one."""
    lists = {
        path: ERRORS[answer] if answer in ERRORS else PAGES[answer](kind)
        for (kind, _, _, path), answer in zip(LISTS, answers, strict=True)
        if answer
    }
    lists["v2alpha1/projects/p/locations"] = {"locations": [{"name": "projects/p/locations/z1"}]}
    used = frozenset({"compute", "tpu"}) if are_apis_known else None
    stated = frozenset({"locations/z2/nodes/n", "locations/z3/nodes/n"}) if is_stated else frozenset()
    scope = Scope(projects=["p", "q"], asker=asker("x", stated=stated), places={"tpu": ["z2"]}, apis=used)
    found = search(Google(lists), scope, clock=Patience().clock)
    groups, off, outcomes = {}, {}, {}
    for (kind, api, project, path), answer in zip(LISTS, answers, strict=True):
        outcome = "read"
        if answer == "off":
            outcome = "API not enabled"
            if used is None or api in used:
                off.setdefault(project, set()).add(api)
        elif answer == "denied" and "/z2/" in path and not is_stated:
            outcome = "no such place"
        elif answer:
            outcome = "a could not be reached" if answer == "omits" else why_of(api, kind, lists[path])
            key = ("denied", project) if answer == "denied" else (outcome, "")
            groups.setdefault(key, []).append((kind, project, path, outcome))
        outcomes[path] = outcome
    sentences = []
    for group in groups.values():
        kind, _, path, why = group[0]
        kinds = [*dict.fromkeys(kind for kind, *_ in group)]
        if len(group) == 1:
            article = "an" if kind[0] in "aeiou" else "a"
            sentences.append(f"Could not check whether {article} {kind} still exists: {path} answered: {why}")
            continue
        named = ", ".join(kinds) if len(kinds) <= 4 else f"{len(kinds)} kinds of resources"
        projects = ", ".join(dict.fromkeys(project for _, project, *_ in group))
        sentences.append(
            f"Could not read {len(group)} lists in project {projects} ({named}), so resources may still exist: {why}"
        )
    for project, apis in off.items():
        services = [f"{api}.googleapis.com" for api in sorted(apis)]
        sentences.append(
            f"Could not check resources of {', '.join(services)} in project {project} because the API is off. They may still be "
            f"running. Run `gcloud services enable {' '.join(services)} --project={project}`, then the same command again."
        )
    assert sorted(found.unknown) == sorted(sentences)
    assert {call.path: call.outcome for call in found.calls if call.path in outcomes} == outcomes


@law
@given(st.integers(0, 320), st.sampled_from([0, 30]), st.sampled_from([0, 20]), st.booleans(), st.booleans())
def test_a_just_enabled_api_is_read_until_it_answers_and_once_more_after_it_settled(
    on_s, off_again_s, listed_s, is_enabled, is_off_in_q
):
    """It can answer without what it has, and be off again for a while. Monitoring is off, and was not enabled."""
    clock, said = Patience(), []

    def is_off():
        return clock.now_s < on_s or on_s + 15 <= clock.now_s < on_s + 15 + off_again_s

    class Starting(Google):
        """Google, in which an API starts."""

        def pages(self, api, path):
            is_starting = api == "secretmanager" and "/p/" in path
            is_off_there = api == "monitoring" or (api == "secretmanager" and is_off_in_q)
            if (is_off_there and "/q/" in path) or (is_starting and is_off()):
                raise ERRORS["off"]
            is_listed = is_starting and clock.now_s >= on_s + listed_s
            secret = {"name": "projects/1/secrets/s", "labels": dict(owner("x").labels)}
            yield {"secrets": [secret]} if is_listed else next(super().pages(api, path))

    google = Starting({}, enabled=[("p", "secretmanager")] if is_enabled else [])
    scope = Scope(projects=["p", "q"], asker=asker("x"))
    found = search(google, scope, clock=clock.clock, say=said.append)
    waits, was_off, seen_s = [], on_s > 0, 0
    while is_enabled and on_s > 0 and (not was_off or sum(waits) < 300):
        before = was_off
        waits.append(10 if before else 30)
        seen_s = sum(waits)
        was_off = seen_s < on_s or on_s + 15 <= seen_s < on_s + 15 + off_again_s
        if not before and not was_off:
            break
    assert clock.pauses == waits
    assert said == ["waiting up to 300 s for secretmanager.googleapis.com (recently enabled)"] * (waits != [])
    assert len(found.found) == (not was_off and seen_s >= on_s + listed_s)
    assert ["secretmanager" in sentence for sentence in found.unknown] == [*([True] if was_off else []), is_off_in_q]
    asked = {("q", "monitoring"), *([("p", "secretmanager")] if on_s else [])}
    assert google.asked == asked | ({("q", "secretmanager")} if is_off_in_q else set())

"""Laws about a teardown, against a model: what it deletes, what it asks for, and what its receipt has, whatever Google and a user answer."""

import json
import re
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gemma_serving.cloud.deletion import DeletedResource
from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.cloud.google_session import NoConnectionError, RejectedLoginError
from gemma_serving.cloud.kinds import BY_TYPE
from gemma_serving.cloud.spending import StackSpending
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.labels import Ownership, StackLimits
from gemma_serving.contracts.search_results import FoundResource, Inventory
from gemma_serving.contracts.stack_lock import StackLock
from gemma_serving.engine import runner
from gemma_serving.engine.exported_state import deployment_of
from gemma_serving.engine.state import StackState, of_deployment
from gemma_serving.scripts.stack.labelled import SearchedStacks
from gemma_serving.scripts.teardown import removal
from gemma_serving.scripts.teardown.__main__ import COMMAND
from gemma_serving.scripts.teardown.receipt import ReceiptError, RetainedBucket
from gemma_serving.scripts.teardown.removal import Teardown
from gemma_serving.scripts.teardown.teardown_options import TeardownOptions
from tests.cloud.populated import asker, owner
from tests.cloud.test_deletion import Patience
from tests.laws import examples

KINDS = ["secret", "image repository", "bucket", "subnetwork", "network"]
NETWORKS = KINDS[3:]
TYPES = {kind.kind: type_ for type_, kind in BY_TYPE.items()}
RETAINED = {"gemma-serving-retained": "true"}
DRY = TeardownOptions(stack="x", dry_run=True)
law = settings(max_examples=examples(test=60, part=500, night=5000))


def found(kind, *, is_retained=False):
    labels = {**owner("x").labels, **(RETAINED if is_retained else {})}
    return FoundResource(kind=kind, name=kind, command="", owner=owner("x"), labels=labels)


def entry(kind):
    """Return the entry of a state that has a resource."""
    return {"type": TYPES[kind], "custom": True, "id": kind, "urn": kind}


def inventory(items, *, unread=False, stack="x", **more):
    """Return the result of a search."""
    unknown = ["unread"] * unread
    return Inventory(asker=asker(stack), found=items, calls=(), unknown=unknown, elapsed_s=0, **more)


def deletion(item, outcome, *, timed_out=False):
    return DeletedResource(resource=item, outcome=outcome, detail="", elapsed_s=0, timed_out=timed_out)


@dataclass(frozen=True)
class Case:
    """Google, a state and a user. By default nothing exists, and each answer is yes."""

    exists: frozenset = frozenset()
    late: frozenset = frozenset()
    """Kinds that only the second search finds."""
    stated: frozenset = frozenset()
    """Kinds that the state of this backend has."""
    held: str = "never"
    """When only Google holds the networks: never, always, or at the first search."""
    is_retained: bool = False
    """True if the bucket has the label."""
    is_chained: bool = False
    """True if each kind can go only after those before it."""
    fails: frozenset = frozenset()
    times_out: frozenset = frozenset()
    """Kinds whose deletion ends so."""
    unread: str = "never"
    """When a list cannot be read."""
    unstated: bool | None = True
    """Answer about what no state has; None without a terminal."""
    agrees: tuple = (True, True)
    """Answers to the question before the first deletion, and to one about what appeared since."""
    options: TeardownOptions = field(default_factory=lambda: TeardownOptions(stack="x"))


def is_now(when, *, first):
    return when == "always" or (when == "first" and first)


class World:
    """Google, the state and the user of a case, and what a teardown did there."""

    def __init__(self, case):
        self.case, self.gone, self.searched = case, set(), 0
        self.asked, self.rounds, self.notes, self.has_found = [], [], [], False
        self.waited, self.told, self.retained = [], [], []
        """Searches before the wait for what is being created; what each search was told to keep; what the last one found of it."""
        resources = [entry(kind) for kind in KINDS if kind in case.stated]
        component = [{"type": "gemma:Component", "custom": False, "urn": "c"}] if resources else []
        self.state = StackState(stack="x", status="no engine", projects=("p",), resources=[*component, *resources])

    def search(self, *_, kept=(), **__):
        self.searched += 1
        self.told.append((list(kept), self.retained))
        seen = self.case.exists - self.gone - (self.case.late if self.searched == 1 else set())
        items = [found(kind, is_retained=kind == "bucket" and self.case.is_retained) for kind in KINDS if kind in seen]
        self.has_found |= bool(items)
        self.retained = [kind for kind in KINDS if kind in seen & Model(self.case).kept]
        return inventory(items, unread=is_now(self.case.unread, first=self.searched == 1))

    def held_in(self, _api, _inventory, left):
        return {
            item.name: ["serverless-1"]
            for item in left
            if item.name in NETWORKS and is_now(self.case.held, first=self.searched == 1)
        }

    def delete_all(self, _api, chosen, *_, **__):
        names = [item.name for item in chosen]
        self.rounds.append(names)
        outcomes = {name: outcome(self.case, name, self.gone) for name in names}
        self.gone |= {name for name, word in outcomes.items() if word != "failed"}
        times_out = self.case.times_out
        return [deletion(item, outcomes[item.name], timed_out=item.name in times_out) for item in chosen]

    def agreed(self, _question):
        self.asked.append("unstated")
        return self.case.unstated

    def confirm(self, question, *, without_terminal, declined):
        kind = "more" if question.endswith("too?") else "state" if "none of which was found" in question else "first"
        self.asked.append(kind)
        if kind != "more":
            assert question.startswith("Delete stack x of the Pulumi project gemma-serving: ")
            assert without_terminal.endswith("Pass --yes to confirm.")
        if not self.case.agrees[kind == "more"]:
            raise CommandRefusedError(declined)

    @property
    def attributes(self):
        """Names in the module of the teardown, and what they are here."""
        return {
            "search_stacks": self.search,
            "held_in": self.held_in,
            "delete_all": self.delete_all,
            "agreed": self.agreed,
            "confirm": self.confirm,
            "retained_bucket": lambda _, resource: RetainedBucket(resource=resource, size_gib=None),
            "stack_locks": lambda _: [],
            "has_price": lambda item: item.name == "secret",
            "spending": lambda *_: ["spent"],
            "show": lambda *_: None,
            "progress": lambda _: None,
            "pending.wait": lambda *_, **__: self.waited.append(self.searched),
            "states.read": lambda _: self.state,
            "unfinished_teardown.remember": lambda _: self.notes.append("begun"),
            "unfinished_teardown.forget": lambda _: self.notes.append("ended"),
        }


def outcome(case, kind, gone):
    """Return the outcome of a deletion."""
    before = set(KINDS[: KINDS.index(kind)]) & case.exists
    is_blocked = case.is_chained and not before <= gone
    return (
        "failed"
        if is_blocked or kind in case.fails | case.times_out
        else "already deleted"
        if kind == "secret"
        else "deleted"
    )


@dataclass
class Model:
    """The right course of a teardown."""

    case: Case
    asked: list = field(default_factory=list)
    rounds: list = field(default_factory=list)
    gone: set = field(default_factory=set)
    left: set = field(default_factory=set)
    confirmed: set = field(default_factory=set)
    begun: bool = False
    has_work: bool = False

    @property
    def kept(self):
        options = self.case.options
        return {"bucket"} if options.keep_bucket or (self.case.is_retained and not options.include_retained) else set()

    def seen(self):
        late = self.case.late if not self.begun else set()
        return [kind for kind in KINDS if kind in self.case.exists - self.gone - late]

    def held(self):
        return [kind for kind in self.seen() if kind in NETWORKS and is_now(self.case.held, first=not self.begun)]

    def leaked(self):
        return [kind for kind in self.seen() if kind not in {*self.kept, *self.held()}]

    def owned(self):
        return [kind for kind in self.leaked() if kind not in self.left]

    def stated_count(self):
        return 0 if self.case.stated <= {*self.held()} else len(self.case.stated)

    def others(self):
        """Return what no state of this backend has: a limit in the labels needs none."""
        return [] if self.case.options.over_limit else [kind for kind in self.leaked() if kind not in self.case.stated]

    def ask_about_others(self):
        new = [kind for kind in self.others() if kind not in self.left | self.confirmed]
        if not new:
            return
        self.asked.append("unstated")
        if self.case.unstated:
            self.confirmed |= {*new}
        elif self.case.unstated is False and not self.begun and new == self.leaked() and not self.stated_count():
            raise CommandRefusedError
        else:
            self.left |= {*new}

    def ask(self, question, *, is_needed):
        self.confirmed |= {*self.owned(), *self.held()}
        if is_needed and not self.case.options.yes:
            self.asked.append(question)
            if not self.case.agrees[question == "more"]:
                raise CommandRefusedError

    def run(self):
        self.ask_about_others()
        new = {*self.owned()} - self.confirmed
        self.ask("first" if new else "state", is_needed=new or self.stated_count())
        self.has_work = bool(self.owned() or self.stated_count())
        self.begun, waited = True, set()
        for _ in range(3):
            self.ask_about_others()
            self.ask("more", is_needed={*self.owned()} - self.confirmed)
            if not self.owned():
                return
            chosen = [kind for kind in self.owned() if kind not in waited]
            self.rounds.append(chosen)
            gone = {kind for kind in chosen if outcome(self.case, kind, self.gone) != "failed"}
            waited |= self.case.times_out & {*chosen}
            self.gone |= gone
            if not gone:
                return


SOME = st.frozensets(st.sampled_from(KINDS))
FEW = st.just(frozenset()) | SOME
WHEN = st.sampled_from(["never", "always", "first"])
YES = st.sampled_from([True, True, True, False])
OPTIONS = st.builds(
    TeardownOptions,
    stack=st.just("x"),
    dry_run=st.sampled_from([False, False, False, True]),
    yes=st.booleans(),
    over_limit=st.booleans(),
    keep_bucket=st.booleans(),
    include_retained=st.booleans(),
)


@settings(max_examples=examples(test=250, part=1000, night=10_000))
@given(
    st.builds(
        Case,
        exists=SOME | st.just(frozenset(KINDS)),
        late=FEW,
        stated=SOME | st.just(frozenset(KINDS)),
        held=WHEN,
        is_retained=st.booleans(),
        is_chained=st.booleans(),
        fails=FEW,
        times_out=FEW,
        unread=WHEN,
        unstated=st.sampled_from([True, True, False, None]),
        agrees=st.tuples(YES, YES),
        options=OPTIONS,
    )
)
@example(Case(exists=frozenset({"secret"}), unstated=False))
@example(Case(exists=frozenset({"secret"}), unstated=None))
@example(Case(exists=frozenset(NETWORKS), stated=frozenset(NETWORKS), held="always"))
def test_a_teardown_deletes_what_is_the_stacks_and_was_agreed_to_and_its_receipt_has_the_rest(case):
    world, model, refused = World(case), Model(case), False
    spent_now = ["spent"] if "secret" in model.leaked() else []
    with pytest.MonkeyPatch.context() as patch:
        teardown = opened(world, patch, case.options)
        try:
            teardown.run()
        except CommandRefusedError:
            refused = True
        receipt = teardown.receipt()
    if not case.options.dry_run:
        try:
            model.run()
            assert not refused
        except CommandRefusedError:
            assert refused
    assert (world.asked, world.rounds, world.gone) == (model.asked, model.rounds, model.gone)
    assert (teardown.begun, receipt.interrupted, receipt.dry_run) == (model.begun, refused, case.options.dry_run)
    assert teardown.has_deleted is bool(model.rounds)
    assert world.waited == [1] * model.begun, "what is still created appears before the last look"
    assert all(told == retained for told, retained in world.told)
    assert [item.name for item in receipt.leaked] == model.leaked()
    assert [item.name for item in receipt.held] == model.held()
    assert (receipt.held_by, receipt.held_until) == (["serverless-1"] if model.held() else [], None)
    assert [item.name for item in receipt.left] == [kind for kind in model.leaked() if kind in model.left]
    assert [item.resource.name for item in receipt.retained] == [kind for kind in model.seen() if kind in model.kept]
    unread = is_now(case.unread, first=not model.begun)
    assert receipt.clean is not bool(model.leaked() or unread or refused)
    assert (receipt.stack, teardown.known.is_name_known) == ("x", world.has_found)
    assert ("" in receipt.warnings, [*receipt.spent]) == (False, spent_now)
    assert [item.resource.name for item in receipt.deletions] == [kind for chosen in model.rounds for kind in chosen]
    is_ended = model.begun and not refused and not model.owned() and not unread
    assert world.notes == ["begun"] * model.has_work + ["ended"] * is_ended


def opened(world, patch, options=DRY, *, states=None, known=None, **attributes):
    """Return a teardown in a world, whose module has these attributes."""
    for name, value in {**world.attributes, **attributes}.items():
        patch.setattr(f"gemma_serving.scripts.teardown.removal.{name}", value)
    given_states = [world.state] if states is None else states
    searched = SearchedStacks(
        stack=options.stack, states=given_states, settings=known or {}, projects=["p"], is_name_known=False
    )
    return Teardown(options=options, known=searched, api=None, clock=Patience().clock)


@law
@given(
    st.sampled_from(["x", None]),
    st.lists(st.tuples(st.sampled_from(["read", "missing", "no engine"]), st.sampled_from([(), ("p",)])), max_size=2),
    st.booleans(),
    st.sampled_from([Case(), Case(), Case(exists=frozenset({"secret"})), Case(unread="always")])
    | st.just(Case(exists=frozenset({"bucket"}), is_retained=True))
    | st.just(Case(exists=frozenset(NETWORKS), held="always")),
)
@example("x", [("missing", ())], False, Case())
@example("x", [("no engine", ())], False, Case())
def test_only_a_name_without_state_settings_and_resources_is_refused(stack, drawn, has_settings, case):
    states = [StackState(stack="x", status=status, projects=projects) for status, projects in drawn]
    has_state = any(status == "read" or projects for status, projects in drawn)
    is_refused = stack and not has_state and not has_settings and not case.exists and case.unread == "never"
    with pytest.MonkeyPatch.context() as patch:
        known = {"x": None} if has_settings else {}
        patch.setattr(removal.runner, "listed_stacks", frozenset)
        teardown = opened(World(case), patch, replace(DRY, stack=stack), states=states, known=known)
        with pytest.raises(removal.UnknownStackError, match=r"^Stack x not found: ") if is_refused else nullcontext():
            teardown.run()


GUESTS = [("gemma-serving", "y"), ("gemma-serving", "z"), ("billing", "y")]


@law
@given(st.lists(st.sampled_from(GUESTS), max_size=2), st.booleans(), st.booleans())
def test_resources_of_others_in_the_network_end_a_teardown_before_it_begins(owners, dry_run, over_limit):
    guests = [
        FoundResource(kind="router", name="a/b", command="", owner=Ownership(project=project, stack=stack))
        for project, stack in owners
    ]
    names, commands = [], []
    for project, stack in sorted({*owners}):
        is_own = project == "gemma-serving"
        names.append(stack if is_own else f"{stack} of the Pulumi project {project}")
        commands.append(f"`gemma teardown {stack}`" if is_own else f"`pulumi destroy --stack {stack}` in {project}")
    sentence = (
        f"The network of stack x has resources of {', '.join(names)}, such as router b, and Google deletes no network in use. "
        f"Run {' and '.join(commands)} first."
    )
    options = TeardownOptions(stack="x", dry_run=dry_run, over_limit=over_limit, yes=True)
    with pytest.MonkeyPatch.context() as patch:
        teardown = opened(World(Case()), patch, options, search_stacks=lambda *_, **__: inventory([], guests=guests))
        if guests and not (dry_run or over_limit):
            with pytest.raises(CommandRefusedError, match=f"^{re.escape(sentence)} Nothing was changed.$"):
                teardown.run()
            assert not teardown.begun
        else:
            teardown.run()
            assert (sentence in teardown.warnings) is bool(guests)


NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
ENDS = st.none() | st.sampled_from([-9, -2, -1, 0, 1]).map(lambda hours: NOW + timedelta(hours=hours))


@law
@given(
    st.sets(st.sampled_from("ab")), st.sets(st.sampled_from("ab")), st.fixed_dictionaries({"a": ENDS, "b": ENDS}), ENDS
)
def test_google_holds_networks_for_two_hours_after_the_last_service_and_one_more(held, served, stated, later):
    """Without a service in a search, a state knows since when. The first end that is known stays."""
    networks = [replace(found("subnetwork"), name=stack, owner=owner(stack)) for stack in sorted(held)]
    services = [replace(found("Cloud Run service"), name=f"of {stack}", owner=owner(stack)) for stack in served]
    nets = [FoundResource(kind="router", name=f"r{stack}", command="", owner=owner(stack)) for stack in "ab"]
    searched = inventory([*networks, *services, *nets], stack=None)
    ends = [NOW + timedelta(hours=2) if stack in served else stated[stack] for stack in sorted(held)]
    end = None if None in ends else max(ends, default=None)
    is_late = end is not None and end + timedelta(hours=1) < NOW
    states = [StackState(stack=stack, status="read") for stack in "ab"]

    def of_state(state):
        return stated[state.stack] and SimpleNamespace(stack=state.stack, until=stated[state.stack])

    with pytest.MonkeyPatch.context() as patch:
        attributes = {
            "search_stacks": lambda *_, **__: searched,
            "held_in": lambda *_: {item.name: ["address"] for item in networks},
            "GOOGLE_CLOCK": SimpleNamespace(now=lambda: NOW),
            "held_network": of_state,
        }
        teardown = opened(World(Case()), patch, replace(DRY, stack=None), states=states, **attributes)
        teardown.search()
        assert (teardown.held_until, {*teardown.held}) == (end, set() if is_late else held)
        assert [item.name for item in teardown.leaked] == [
            item.name for item in searched.found if is_late or item.name not in held
        ]
        stated |= {"a": later, "b": later}
        teardown.search()
        assert end is None or teardown.held_until == end


@law
@given(ENDS, st.lists(st.integers(0, 12) | st.just(10**6), min_size=1, max_size=2))
def test_a_wait_for_google_ends_with_the_last_address_or_an_hour_after_the_end(until, released):
    """`released`: half hours until a subnetwork has no address."""
    names = [f"projects/p/regions/r/subnetworks/{number}" for number in range(len(released))]
    clock, lines = Patience(), []

    def addresses_in(_api, name):
        return ["a"] if clock.now_s < 1800 * released[names.index(name)] else []

    with pytest.MonkeyPatch.context() as patch:
        attributes = {
            "GOOGLE_CLOCK": SimpleNamespace(now=lambda: NOW),
            "addresses_in": addresses_in,
            "engine_run.show_step": lambda _: nullcontext(lambda *words: lines.append(words)),
            "Teardown._clear": lambda _: lines.append("cleared"),
        }
        teardown = replace(opened(World(Case()), patch, **attributes), clock=clock.clock)
        teardown.held, teardown.held_until = {one: ["a"] for one in ["projects/p/networks/n", *names]}, until
        teardown._wait_for_google()
    left_s = (until - NOW).total_seconds() if until else 7200
    end_s = left_s + 3600 + 30
    waited_s = max(0, min(1800 * max(released), end_s))
    assert clock.now_s == waited_s
    assert lines == [
        *(
            (f"waiting for Google to release {names[0]}: {(end_s - at_s) / 60:.0f} minutes left at most", "")
            for at_s in range(0, int(waited_s), 30)
        ),
        "cleared",
    ]


STEPS = ["", "1 of 3: refreshing gcp:x y", "1 of 3: deleting gcp:x y", "1 of 3: deleted gcp:x y"]
STACK_ENTRY = {"type": "pulumi:pulumi:Stack", "urn": "stack", "custom": False}


@dataclass
class Engine:
    """A state in an engine. Its commands fail as drawn: first the destroy, then the one that empties the state."""

    kinds: list
    target: str
    protects: bool
    pends: bool
    fails: list
    is_rejected: bool
    """True if the engine takes no empty state."""
    step: str = ""
    """What each destroy says that it does."""
    searched: int = 0
    calls: list = field(default_factory=list)

    def __post_init__(self):
        protection = {"protect": True} if self.protects else {}
        self.entries = [{**entry(kind), **protection} for kind in self.kinds]
        self.pending = [{"type": "gcp:a:B", "urn": "begun", "inputs": {}}] if self.pends else []
        self.cloud = {*self.kinds}

    def read(self, _stack="x"):
        top = {**STACK_ENTRY, "outputs": {"target": self.target, "project": "p"}}
        resources = [top, *self.entries] if self.entries else []
        operations = [{"type": "creating", "resource": one} for one in self.pending]
        deployment = {"manifest": {"time": NOW.isoformat()}, "resources": resources, "pending_operations": operations}
        return of_deployment("x", deployment_of("x", {"version": 3, "deployment": deployment}))

    def destroy(self, _stack, _proof, *options, steps, describe, **_):
        assert (steps, describe(self.step)) == (len(self.entries) + 1, "")
        self.calls.append(
            ("refresh" if "--refresh" in options else "destroy", sorted(one for one in options if one != "--refresh"))
        )
        if self.fails.pop(0):
            raise runner.PulumiFailedError("it failed.", "")
        self.entries = [one for one in self.entries if f"--exclude={one['urn']}" in options]
        if "--refresh" not in options:
            self.cloud = {one["urn"] for one in self.entries}

    def delete(self, chosen, *, stays):
        gone = [item for item in chosen if not (stays and item.name == "secret")]
        self.cloud -= {item.name for item in gone}
        return [deletion(item, "deleted" if item in gone else "failed") for item in chosen]

    def found(self, unread):
        self.searched += 1
        return inventory([*map(found, sorted(self.cloud))], unread=is_now(unread, first=self.searched == 1))

    def write(self, _stack, deployment):
        self.calls.append(("import", [item.raw.get("protect") for item in deployment.resources[1:]]))
        self.entries = [dict(item.raw) for item in deployment.resources[1:]]
        self.pending = [dict(one.resource.raw) for one in deployment.pending]

    def write_empty(self, _stack, _proof):
        self.calls.append(("empty", []))
        if self.is_rejected:
            raise ScriptError("The engine rejects it.")
        self.entries, self.pending = [], []


@law
@given(
    kinds=st.sets(st.sampled_from(["secret", *NETWORKS])).map(sorted),
    target=st.sampled_from(["tpu", "cloud-run"]),
    protects=st.booleans(),
    pends=st.booleans(),
    fails=st.tuples(st.booleans(), st.booleans()).map(list),
    held=st.booleans(),
    stays=st.booleans(),
    unread=WHEN,
    is_rejected=st.booleans(),
    step=st.sampled_from(STEPS),
)
def test_a_state_loses_what_is_gone_and_keeps_what_google_has(
    *, kinds, target, protects, pends, fails, held, stays, unread, is_rejected, step
):
    """`stays`: the secret cannot be deleted. The networks of Cloud Run go last, by the search."""
    engine = Engine(kinds, target, protects, pends, [*fails], is_rejected, step)
    options = TeardownOptions(stack="x", yes=True, over_limit=True)
    with pytest.MonkeyPatch.context() as patch:
        attributes = {
            "search_stacks": lambda *_, **__: engine.found(unread),
            "held_in": lambda *_: {kind: ["address"] for kind in NETWORKS if held and kind in engine.cloud},
            "delete_all": lambda _, chosen, *__, **___: engine.delete(chosen, stays=stays),
            "held_network": lambda _: None,
            "states.read": engine.read,
            "engine_run.destroy": engine.destroy,
            "write_deployment": engine.write,
            "write_empty": engine.write_empty,
            "no_new_file": lambda _: nullcontext(),
            "back_up": lambda *_: "copy",
        }
        teardown = opened(World(Case()), patch, options, states=[engine.read()], **attributes)
        teardown.run()
    is_unread = unread == "always"
    calls, left, marks = [], [*kinds], [protects or None] * len(kinds)
    kept = [kind for kind in kinds if kind in NETWORKS and target == "cloud-run"]
    if {*kinds} - {*kept}:
        marks = [None] * len(kinds)
        calls += [("import", marks)] if protects else []
        calls.append(("destroy", [f"--exclude={kind}" for kind in kept]))
        left = [*kinds] if fails.pop(0) else kept
    destroyed = len(kinds) - len(left)
    of_google = [kind for kind in left if held and kind in NETWORKS]
    leaked = [kind for kind in left if kind == "secret" and stays]
    beyond = [] if {*left} <= {*of_google} else left
    if beyond and not leaked and not is_unread:
        calls.append(("refresh", [f"--exclude={kind}" for kind in of_google]))
        left = left if fails.pop(0) else of_google
        marks = marks[: len(left)]
        calls += [("import", marks)] if pends else []
        if left and not of_google:
            calls.append(("empty", []))
            left = left if is_rejected else []
        beyond = [] if {*left} <= {*of_google} else left
    assert engine.calls == calls
    has_run = {"destroy", "refresh"} & {name for name, _ in calls}
    assert teardown.has_deleted is bool(teardown.deletions or ("delet" in step and has_run))
    receipt = teardown.receipt()
    assert (receipt.destroyed, [item["id"] for item in receipt.state]) == (destroyed, beyond)
    assert [item.name for item in receipt.leaked] == leaked
    assert receipt.clean is not bool(beyond or leaked or is_unread)
    is_emptied = ("empty", []) in calls and not is_rejected
    assert ("The state is now empty. A copy is in copy." in " ".join(receipt.warnings)) is is_emptied
    assert ("was not changed" in " ".join(receipt.warnings)) is bool(is_unread and not leaked and left)


@law
@given(
    exists=SOME,
    unread=WHEN,
    unstated=st.sampled_from([True, None]),
    fails=FEW,
    has_file=st.booleans(),
    is_rejected=st.booleans(),
)
def test_a_truncated_state_becomes_empty_only_if_every_list_was_read_and_nothing_was_left(
    *, exists, unread, unstated, fails, has_file, is_rejected
):
    """`unstated`: whether a user agrees to delete what no state names; None without a terminal."""
    cut = StackState(stack="x", status="unreadable", detail="It is cut off.", is_cut_off=True)
    emptied = []

    def write_empty(stack, proof):
        assert "stack x" in proof.claim
        emptied.append(stack)
        if is_rejected:
            raise ScriptError("The engine rejects it.")

    with pytest.MonkeyPatch.context() as patch:
        attributes = {
            "states.read": lambda _: cut,
            "file_text": lambda _: "cut" if has_file else "",
            "write_empty": write_empty,
            "no_new_file": lambda _: nullcontext(),
            "back_up": lambda _, before: f"copy of {before}",
        }
        world = World(Case(exists=exists, unread=unread, unstated=unstated, fails=fails))
        teardown = opened(world, patch, TeardownOptions(stack="x", yes=True), states=[cut], **attributes)
        teardown.run()
    is_proven = unread != "always" and not teardown.leaked
    assert emptied == ["x"] * is_proven
    copy = " A copy is in copy of cut." if has_file else ""
    said = f"The state of stack x was truncated. It is now empty.{copy}"
    assert (said in teardown.warnings) is (is_proven and not is_rejected)
    assert ("It is cut off." in teardown.warnings) is not is_proven


def spent(stack, *, is_over, unknown=(), project="gemma-serving", idle_s=None):
    """Return the use of a stack that has the limit of a dollar."""
    return StackSpending(
        owner=Ownership(project=project, stack=stack),
        limits=StackLimits(max_usd=1),
        age_s=1.6,
        usd=1.234 if is_over else 0.567,
        usd_per_hour=None if unknown else 2.345,
        idle_s=idle_s,
        unknown=unknown,
    )


STACKS = st.dictionaries(
    st.sampled_from("ab"),
    st.fixed_dictionaries(
        {
            "is_over": st.booleans(),
            "is_over_later": YES,
            "is_read": YES,
            "stays": st.booleans(),
            "idle_s": st.sampled_from([None, 7.6]),
        }
    ),
)


@law
@given(
    stacks=STACKS,
    foreign=st.sampled_from([None, False, True]),
    is_unread=st.booleans(),
    is_held=st.booleans(),
    is_lost=st.booleans(),
    as_json=st.booleans(),
)
def test_a_guard_takes_down_each_stack_that_still_exceeds_a_limit_and_nothing_else(
    *, stacks, foreign, is_unread, is_held, is_lost, as_json
):
    """`foreign`: whether a stack of another project is over its limit. `is_lost`: a receipt cannot be written."""
    others = [FoundResource(kind="secret", name="o", command="", owner=Ownership(project="billing", stack="o"))]
    printed, asked, down = [], [], []

    def search(_api, known, **_):
        names = [
            stack for stack in stacks if known.stack in {None, stack} and (stack not in down or stacks[stack]["stays"])
        ]
        items = [replace(found("secret"), name=stack, owner=owner(stack)) for stack in names]
        items += [replace(found("network"), name="n", owner=owner("n"))] * (is_held and known.stack is None)
        return inventory(items, unread=is_unread, stack=known.stack, foreign=[] if foreign is None else others)

    def spending(_api, items, _now):
        names = [item.name for item in items]
        asked.append(names)
        if names == ["o"]:
            return [spent("o", is_over=foreign, project="billing")]
        is_later = len(asked) > 1
        others_use = [spent("former", is_over=True)] if is_later else []
        return others_use + [
            spent(
                name,
                is_over=stacks[name]["is_over"] and (stacks[name]["is_over_later"] or not is_later),
                unknown=() if stacks[name]["is_read"] else ["no record"],
                idle_s=stacks[name]["idle_s"],
            )
            for name in names
        ]

    def run(teardown):
        down.append(teardown.options.stack)
        teardown.search()
        teardown.done = True

    def write(receipt, _path):
        if is_lost:
            raise ReceiptError("No place.", None)
        return Path(f"{receipt.stack}.json")

    def inputs(options):
        assert options.stack or options.all_stacks
        return SearchedStacks(stack=options.stack, states=[], settings={}, projects=["p"], is_name_known=True)

    with pytest.MonkeyPatch.context() as patch:
        attributes = {
            "search_stacks": search,
            "held_in": lambda *given: {item.name: ["address"] for item in given[-1] if item.name == "n"},
            "spending": spending,
            "connected": lambda _: None,
            "print_text": printed.append,
            "Teardown.run": run,
            "Receipt.write": write,
            "read_inputs": inputs,
        }
        opened(World(Case()), patch, **attributes)
        code = removal.guard(TeardownOptions(all_stacks=True, over_limit=True, yes=True, as_json=as_json))
    over = [stack for stack, of in stacks.items() if of["is_over"]]
    assert down == [stack for stack in over if stacks[stack]["is_over_later"]]
    assert asked == [[*stacks], *([] if foreign is None else [["o"]]), *([stack] for stack in over)]
    stay = [stack for stack in down if stacks[stack]["stays"]]
    clean = not (stay or is_unread or (is_lost and down)) and all(of["is_read"] for of in stacks.values())
    assert code == (1 if not clean else 3 if foreign else 0)
    if not as_json:
        texts = [text.rpartition("\nReceipt: ")[2] for text in printed if "\nReceipt: " in text]
        assert texts == ["above" if is_lost else f"{stack}.json" for stack in down]
        assert len(printed) == len(texts) * (2 if is_lost else 1)
        return
    (document,) = map(json.loads, printed)
    assert (document["clean"], document["unknown"]) == (clean, ["unread"] * is_unread)
    assert len(document["others"]) == bool(foreign)
    assert [(one["stack"], one["receipt"]) for one in document["receipts"]] == [
        (stack, None if is_lost else f"{stack}.json") for stack in down
    ]
    assert all(len(one["reasons"]) == 1 for one in document["receipts"])
    for one in document["stacks"]:
        of = stacks[one["stack"]]
        assert (one["usd"], one["age_s"]) == (1.23 if of["is_over"] else 0.57, 2)
        assert one["usd_per_hour"] == (2.35 if of["is_read"] else None)
        assert one["idle_s"] == (of["idle_s"] and 8)


@pytest.mark.parametrize("over_limit", [False, True])
@pytest.mark.parametrize(
    "error",
    [None, RejectedLoginError(), NoConnectionError("https://a.b", OSError()), GoogleListError(403, "denied", "")],
)
def test_only_a_rejected_login_ends_a_command_before_its_search(monkeypatch, error, over_limit):
    def post(api, path, _body):
        assert (api, path) == ("cloudresourcemanager", "v1/projects/p:testIamPermissions")
        if error is not None:
            raise error
        return {}

    def search(api, *_, **__):
        assert api is session
        raise ScriptError("It searches.")

    session = SimpleNamespace(post=post)
    known = SearchedStacks(stack="x", states=[], settings={}, projects=["p"], is_name_known=True)
    attributes = {"connect": lambda *_: session, "read_inputs": lambda _: known, "search_stacks": search}
    opened(World(Case()), monkeypatch, **attributes)
    options = TeardownOptions(stack=None if over_limit else "x", all_stacks=over_limit, over_limit=over_limit)
    is_rejected = isinstance(error, RejectedLoginError)
    with pytest.raises(ScriptError, match="^Google rejected " if is_rejected else r"^It searches\.$"):
        COMMAND.run(options)


def test_nothing_counts_as_destroyed_if_the_state_cannot_be_read_afterwards(monkeypatch):
    state = Engine(["secret"], "tpu", protects=False, pends=False, fails=[], is_rejected=False).read()
    attributes = {
        "states.read": lambda _: StackState(stack="x", status="unreadable", detail="No."),
        "engine_run.destroy": lambda *_, **__: None,
        "no_new_file": lambda _: nullcontext(),
    }
    options = TeardownOptions(stack="x", yes=True, over_limit=True)
    teardown = opened(World(Case()), monkeypatch, options, states=[state], **attributes)
    teardown.run()
    assert (teardown.receipt().destroyed, teardown.warnings) == (0, ["No."])


@pytest.mark.parametrize("found", [[], [StackLock(place="p", user="u", host="h", pid=1, since="s")]])
def test_the_lock_that_the_engine_names_is_asked_about(monkeypatch, found):
    asked, nameless = [], [StackLock(place="", user="", host="", pid=0, since="")]
    attributes = {
        "past_locks": lambda _, end: end(found),
        "runner.query": lambda words: asked.append(words[0]),
        "Teardown._remove_locks": lambda _, stack, held: asked.append((stack, held)),
    }
    assert opened(World(Case()), monkeypatch, **attributes)._past_locks("x", lambda: None)
    assert asked == [("x", found or nameless), "cancel"]


@pytest.mark.parametrize("error", [ScriptError("denied."), GoogleListError(403, "denied.", "")])
def test_a_list_of_addresses_that_cannot_be_read_is_named_once_and_nothing_is_held(monkeypatch, error):
    def denied(*_):
        raise error

    teardown = opened(World(Case(exists=frozenset(NETWORKS))), monkeypatch, held_in=denied)
    for _ in range(2):
        teardown.search()
    assert teardown.warnings == ["Could not check whether Google holds the network: denied."]
    assert (teardown.held, [item.name for item in teardown.leaked]) == ({}, NETWORKS)

"""Run trials one after the other and delete all that they create: after each trial, at the end, and after an interruption."""

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from localcloud.json_values import as_object
from localcloud.ledger.entries import CriticalAssumption
from localcloud.trials.attempt import Attempt, Surroundings, TrialEnded
from localcloud.trials.evening import TRIALS
from localcloud.trials.judging import Judgement, judge
from localcloud.trials.product import left_stacks
from localcloud.trials.resources import KINDS, PREFIX, OwnResource, TrialResource, own_items
from localcloud.trials.sending import ApiReply

_GONE_LIMIT_S: Final = 600
_MISSING: Final = 404


@dataclass(slots=True)
class Runner:
    """Runs trials. `run` identifies this run in each name and ownership marker."""

    world: Surroundings
    run: str = field(default_factory=lambda: secrets.token_hex(3))
    _owned: list[TrialResource] = field(default_factory=list[TrialResource])
    _stacks: dict[str, ApiReply] = field(default_factory=dict[str, ApiReply])
    _count: int = 0
    left: list[str] = field(default_factory=list[str])
    """URLs of resources that could not be deleted."""

    def try_all(
        self, entries: Sequence[CriticalAssumption], before: Callable[[CriticalAssumption], None]
    ) -> Iterator[tuple[CriticalAssumption, Judgement]]:
        """Yield each entry with its judgement, after a call of `before`. When the iteration ends, everything is deleted or listed in `left`."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.clean_up)
            for at, entry in enumerate(entries):
                before(entry)
                yield entry, self._try(entry)
                if entry.stack and all(other.stack != entry.stack for other in entries[at + 1 :]):
                    self._tear_down(entry.stack)

    def clean_up(self) -> None:
        """Delete every resource that this run has created and not yet deleted, and each stack. Enable disabled APIs again."""
        self.enable_again()
        if self._owned:
            self.world.report(f"deleting {len(self._owned)} resources of this run")
        for created in reversed(self._owned.copy()):
            self.delete(OwnResource(created))
        for stack in left_stacks(self.world.product.journal):
            self._tear_down(stack)

    def _tear_down(self, stack: str) -> None:
        problem = self.world.product.tear_down(stack)
        if problem:
            self.left.append(f"stack {stack}: {problem}")
            self.world.report(f"NOT torn down: stack {stack}: {problem}")

    def enable_again(self) -> None:
        """Enable the APIs that a trial has disabled, and wait until they are."""
        for api in list(self.world.product.journal.apis_off):
            url = f"https://serviceusage.googleapis.com/v1/projects/{self.world.project}/services/{api}:enable"
            reply = self.world.finished(url, self.world.sender.send("POST", url, "{}"))
            if reply.is_accepted:
                self.world.product.journal.set("apis_off", api, exists=False)
            else:
                self.left.append(f"disabled API {api}: {reply.summary}")

    def second_run(self, entry: CriticalAssumption, words: Mapping[str, str]) -> Judgement:
        """Run the part of a trial that needed another day, with the words of the first run."""
        trial, attempt = TRIALS[entry.id], self._attempt(entry, words["TRY"])
        assert trial.second_run is not None  # noqa: S101 - the first run left words
        return judge(trial.expected, trial.second_run(attempt, words))

    def _attempt(self, entry: CriticalAssumption, name: str) -> Attempt:
        return Attempt(
            world=self.world, run_id=self.run, name=name, expected=TRIALS[entry.id].expected, owned=self._owned
        )

    def _try(self, entry: CriticalAssumption) -> Judgement:
        self._count += 1
        trial = TRIALS[entry.id]
        if entry.stack and entry.stack not in self._stacks:
            self._stacks[entry.stack] = self.world.product.deploy(entry.stack)
        if entry.stack and not self._stacks[entry.stack].is_accepted:
            return judge(trial.expected, self._stacks[entry.stack])
        before = len(self._owned)
        attempt = self._attempt(entry, f"{PREFIX}{self.run}{self._count}")
        try:
            reply = trial.run(attempt)
        except TrialEnded as ended:
            return ended.judgement
        finally:
            self.enable_again()
            for created in reversed(self._owned[before:]):
                self.delete(OwnResource(created))
        if trial.second_run is None:
            return judge(trial.expected, reply)
        self.world.product.journal.later[entry.id] = attempt.words
        self.world.product.journal.write()
        why = "only the second run can show it: from tomorrow on, run `try --second-run`"
        return Judgement(verdict="tomorrow", answered=reply.summary, why=why)

    def delete(self, own: OwnResource) -> None:
        """Delete a resource and wait until it is gone."""
        created = own.resource
        for _ in self.world.looks(_GONE_LIMIT_S):
            reply = self.world.sender.send("DELETE", created.delete_url)
            if reply.status == _MISSING or self.world.is_gone(created):
                if created in self._owned:
                    self._owned.remove(created)
                return
            if reply.status in {401, 403}:
                break
        self.left.append(created.url)
        self.world.report(f"NOT deleted: {created.url}")


def sweep(world: Surroundings, *, delete: bool) -> tuple[list[str], list[str]]:
    """Search the listings for resources that runs of the journal created, and optionally delete them.

    Return the URLs of leaked resources, and the failed checks with the resources of other runs.
    """
    runner = Runner(world=world)
    left: list[str] = []
    unknown: list[str] = []
    for kind in KINDS.values():
        url = kind.url(world.project)
        reply = world.sender.send("GET", url)
        if not reply.is_accepted:
            if reply.status != _MISSING:
                unknown.append(f"{url}: {reply.summary}")
            continue
        found, foreign = own_items(kind, world.project, reply.body, world.product.journal.runs)
        unknown += foreign
        if as_object(reply.body).get("nextPageToken"):
            unknown.append(f"{url}: only the first page was read")
        for own in found:
            if delete:
                world.report(f"deleting {own.resource.url}")
                runner.delete(own)
            else:
                left.append(own.resource.url)
    return left + runner.left, unknown

"""What tests of hooks start from: a stack of the repository with changes, its plan, and its failed revision."""

from dataclasses import replace

from gemma_serving.contracts.labels import NO_LIMITS, Ownership
from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.planner import plan
from gemma_serving.stacks.base import Context
from gemma_serving.stacks.hooks.failure_hints import FailedStart
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question
from tests.stacks.conftest import ROOT

PROJECT = "local-project"


def failed_start(stack="l4-12b-qat", *, run=None, **changes):
    settings = replace(from_file(settings_file(stack, ROOT), project=PROJECT), **changes)
    settings = replace(settings, cloud_run=replace(settings.cloud_run, **(run or {})))
    return FailedStart(stack=stack, settings=settings, plan=plan(to_question(settings)))


def context_of(settings, limits=NO_LIMITS):
    """Return what the program knows when it declares a stack named x."""
    question = to_question(settings)
    return Context(
        settings=settings,
        subject=examine(question),
        plan=plan(question),
        names=Names(project=settings.project, stack="x"),
        home_region=settings.regions[0],
        ownership=Ownership(project="gemma-serving", stack="x", limits=limits),
        secrets={},
    )

"""The stack of a pasted server: its own words, in the cheapest place where they fit."""

from dataclasses import fields

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.memory.resolve import filled_in
from gemma_serving.planning.planner import plan_of
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.settings.question import NO_SERVICE
from gemma_serving.planning.settings.workload import parse_workload
from gemma_serving.planning.solve.candidates import checkpoints_of, question_of, rentable_accelerators, servings_of
from gemma_serving.planning.solve.search import Solution, with_concurrency
from gemma_serving.scripts.init.init_options import DEFAULT_WORKLOAD, InitOptions
from gemma_serving.scripts.plan.api import Pasted, QuestionOptions, given_options, pasted, question_from


def pasted_solution(options: InitOptions) -> tuple[Pasted, Solution]:
    """Return the server of `--from`, and its deployment in the cheapest place that fits, else in the cheapest. Raises PlanningError."""
    if others := sorted({"model", "like", "config", "budget"}.intersection(given_options(options))):
        raise CommandRefusedError(f"--from takes the model and its settings from the file. Remove --{others[0]}.")
    question = QuestionOptions(accelerator=options.accelerator)
    found = pasted(options.source, (), question, drops_unknown=True)
    asked = question_from(found.asked(question))
    served = next(servings_of(checkpoints_of(asked.settings.model)))
    workload = parse_workload(options.workload or DEFAULT_WORKLOAD)
    run = {one.name: getattr(asked.cloud_run, one.name) for one in fields(NO_SERVICE)}
    own = {f"cloud_run.{name}": value for name, value in run.items() if value != getattr(NO_SERVICE, name)}
    own |= {"weights_mode": asked.facts.weights_mode} if asked.facts.weights_mode else {}
    solutions: list[Solution] = []
    for place in sum(rentable_accelerators(options.region, accelerator=asked.facts.accelerator or None), start=()):
        settings = asked.settings
        there = question_of(served, place, workload, None).changed(vllm=settings.vllm, image=settings.image)
        subject = with_concurrency(filled_in(there))
        if place.platform == "cloud-run" and own and not options.region:
            subject = examine(with_changes(subject.resolved.question, own))
        solutions.append(Solution(served=served, subject=subject))
        if plan_of(solutions[-1].subject).fits:
            return found, solutions[-1]
    return found, solutions[0]

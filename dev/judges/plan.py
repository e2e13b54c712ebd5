"""`python -m dev.judges.plan`: what `gemma plan --compile` runs. Prints a plan, and next to it the answer of Google's compiler."""

import json
import sys
from dataclasses import replace
from typing import Final

from dev.judges.tpu_compiler.judged_plan import compiler_answer
from dev.judges.tpu_compiler.question import require_topology
from dev.judges.tpu_compiler.words import compiled_json, show
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.plan.__main__ import COMMAND as PLAN
from gemma_serving.scripts.plan.__main__ import PlanOptions, plan_object, plan_of_question, show_plan, verdict_of


def _judge(options: PlanOptions) -> ExitCode:
    planned = plan_of_question(options)
    require_topology(planned.subject.resolved)
    found = plan_object(planned) if options.as_json else {}
    if not options.as_json:
        show_plan(planned)
        sys.stdout.flush()
    answer = compiler_answer(planned.options.question, options.judging, planned.subject, planned.plan)
    if options.as_json:
        found["compiled"] = compiled_json(answer, explains=options.explain)
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        show(answer, explains=options.explain)
    verdict = verdict_of(planned)
    return verdict if verdict is ExitCode.REFUSED else answer.judgement.exit_code


COMMAND: Final = replace(PLAN, run=_judge)

if __name__ == "__main__":
    sys.exit(run_command(COMMAND))

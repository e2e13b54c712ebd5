"""Generated tables about the planner: findings, checkpoints, precisions and shipped stacks."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from dev.authors.tables import csv_text, table
from gemma_serving.contracts.settings_files import settings_file, shipped_files, stack_of_file
from gemma_serving.gke.rules import GKE_RULES
from gemma_serving.planning.cost.subject import examine, is_out_of_memory
from gemma_serving.planning.data.checkpoints import ABSENT, CHECKPOINTS, Checkpoint, nearest_ids, with_owner
from gemma_serving.planning.data.images import IMAGES
from gemma_serving.planning.data.prices import PRICES
from gemma_serving.planning.data.quantization import FULL_BYTES
from gemma_serving.planning.machine.families import FAMILIES, AcceleratorFamily, TpuOffer, comparable_name
from gemma_serving.planning.machine.hardware import (
    ACCELERATORS,
    CLOUD_RUN_GPUS,
    api_accelerator_type,
    host_of,
    machine_types,
)
from gemma_serving.planning.model.catalog import spec_of
from gemma_serving.planning.model.spec import tensors
from gemma_serving.planning.model.support import support_of
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.records import CRASHES, Crash
from gemma_serving.planning.question.types import Plan, usd_per
from gemma_serving.planning.rules.findings import RULES, detected_findings
from gemma_serving.planning.rules.security.advisories import ADVISORIES
from gemma_serving.planning.settings.image import image_of_version
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.workload import parse_workload
from gemma_serving.planning.solve.candidates import checkpoints_of, rentable_accelerators
from gemma_serving.planning.solve.search import ServiceLimits, solve
from gemma_serving.planning.units import ROUGH, duration, figure, to_gib
from gemma_serving.scripts.plan.solve import HEADINGS, solution_cells
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question

ROOT: Final = Path(__file__).parents[2]
_SHOWN_NEAR: Final = 3
_WORKLOAD: Final = "in=4000,out=500,users=32"
_EXAMPLE: Final = parse_workload(_WORKLOAD)
"""The question of docs/planning.md."""
_FIRST_STACKS: Final = ("tpu-v6e1", "tpu-v6e4-31b", "l4-12b-qat", "l4-qat", "rtx6000-31b")
"""Stacks of README.md."""
_OWN_26B: Final = "google/gemma-4-26B-A4B-it"
_PRECISION: Final = {"w4a16": "4-bit"}
_CHIPS: Final = {"1": "one", "4": "four"}
_DAY_H: Final = 24


def tables() -> Mapping[str, str]:
    """Return every table by its marker in a page."""
    first = _first_plans()
    return {
        "rules": rules_table(),
        "gke-rules": table(
            "id | severity | finding | source",
            [(row["id"], row["severity"], row["what"], row["source"]) for row in GKE_RULES.values()],
        ),
        "crashes": table(
            "what | needs | from | before | blocked | warned | record | fix", map(_crash_row, CRASHES.values())
        ),
        "checkpoints": table("precision | loaded | runs on | ids", _grouped_rows()),
        "absent": table("id | nearest that exist | absent by", map(_absent_row, ABSENT.values())),
        "solve": _solve_table(),
        "stacks": table(
            "stack | description | start-up | tokens/s (one request) | tokens/s (all) | price",
            map(_stack_row, shipped_files(ROOT)),
        ),
        "first-costs": _first_costs(first.values()),
        "first-stacks": _first_stacks(first),
        "judged-stacks": _judged_stacks(),
        "vulnerabilities": table("image | vLLM | stacks | published vulnerabilities that apply", _vulnerable_rows()),
    }


def rules_table() -> str:
    """Return the table of all rules, in the order of the findings."""
    rows = (
        (rule.id, " or ".join(rule.severities), "yes" if rule.is_acceptable else "no", rule.what, rule.source)
        for rule in RULES.values()
    )
    return table("id | severity | can be accepted | finding | source", rows)


def _crash_row(crash: Crash) -> Sequence[str]:
    some = f"images by digest ({len(crash.images)})" if crash.images else "all" if crash.dies else "none"
    stopped = ", ".join(crash.models) or some
    some_warned = (
        "some requests" if crash.asked else "other images" if crash.images else "none" if crash.dies else "all"
    )
    warned = ", ".join(crash.sisters) or some_warned
    record = f"[{crash.id}]({crash.source.replace('dev/docs/', '../dev/docs/')})"
    needs = ", ".join((*crash.needs, *crash.cards)) or "any model"
    first = ", ".join(start or "-" for start, _ in crash.releases)
    fixed = ", ".join(end or "-" for _, end in crash.releases)
    return crash.kind, needs, first, fixed, stopped, warned, record, crash.way_out


def checkpoints_file() -> str:
    """Return every checkpoint and draft model as CSV, with its commit and the page that names it."""
    rows: list[Sequence[object]] = []
    for one in CHECKPOINTS.values():
        kind = f"{one.kind}, by an individual" if one.is_personal else one.kind
        target = one.architecture if one.is_drafter else ""
        rows.append(
            (one.id, kind, one.scheme, f"{_files_gib(one):.2f}", target, one.commit, one.source.date, one.source.url)
        )
    return csv_text(("id", "kind", "precision", "files_gib", "drafts_for", "commit", "named_on", "named_by"), rows)


def _files_gib(one: Checkpoint) -> float:
    if one.is_drafter:
        return to_gib(sum(tensor.params for tensor in tensors(spec_of(one.id))) * FULL_BYTES)
    return examine(Question().changed(model=one.id, accelerator="H200")).memory.checkpoint_gib


def _grouped_rows() -> Iterator[Sequence[str]]:
    """Yield one row for the checkpoints of the same precision, size and accelerators."""
    groups: dict[Sequence[str], list[str]] = {}
    for one in (one for one in CHECKPOINTS.values() if not one.is_drafter):
        loaded = f"{examine(Question().changed(model=one.id, accelerator='H200')).memory.weights_gib:.2f}"
        places = [name for name, known in ACCELERATORS.items() if known.platforms != ("gce",) and not known.plan_only]
        fitting = [name for name in places if _fits(one, name)]
        groups.setdefault((one.scheme, loaded, ", ".join(fitting) or "none"), []).append(one.id)
    return ((*group, ", ".join(ids)) for group, ids in groups.items())


def _fits(one: Checkpoint, accelerator: str) -> bool:
    subject = examine(Question().changed(model=one.id, accelerator=accelerator))
    resolved = subject.resolved
    if subject.unknown:
        return False
    if support_of(resolved.scheme.name, resolved.spec, resolved.accelerator).answer != "yes":
        return False
    return not is_out_of_memory(subject.memory) and "block" not in detected_findings(subject).values()


def _absent_row(one: Checkpoint) -> Sequence[str]:
    near = [with_owner(each) for each in nearest_ids(one)[:_SHOWN_NEAR]]
    return one.id, ", ".join(near), f"[{one.absent.date}]({one.absent.url})" if one.absent else ""


def _solve_table() -> str:
    """Return the cheapest of each family, and the best by each criterion, for the question of docs/planning.md."""
    limits = ServiceLimits(max_ttft_s=1, max_tpot_s=0.05, max_usd_per_hour=6)
    answer = solve(_EXAMPLE, limits, checkpoints=checkpoints_of(None), places=rentable_accelerators(()))
    rows = [(*solution_cells(one).values(), ", ".join(answer.marks(one)) or "-") for one in answer.best_per_model()]
    return table(" | ".join((*HEADINGS, "best")), rows)


def _stack_row(path: Path) -> Sequence[str]:
    planned = plan(to_question(from_file(path, project="my-project"), path.parent))
    cost, speed = planned.cost, planned.throughput
    return (
        f"`{stack_of_file(path.name)}`",
        _described(path),
        planned.startup.ready_words.removeprefix("about "),
        figure(speed.decode_tok_per_s, ROUGH),
        figure(speed.saturated_tok_per_s, ROUGH),
        f"${cost.usd_per_hour:,.2f} per hour, ${cost.most_usd:,.2f} maximum ({cost.most_usd_basis})",
    )


def _first_plans() -> Mapping[str, Plan]:
    """Return the plan of each stack of README.md."""
    files = {name: settings_file(name, ROOT) for name in _FIRST_STACKS}
    return {name: plan(to_question(from_file(path, project="my-project"))) for name, path in files.items()}


def _first_costs(first: Iterable[Plan]) -> str:
    """Return what the stacks of README.md cost, as sentences."""
    plans = sorted(first, key=lambda one: one.cost.usd_per_hour)
    least, *_, most = [f"${one.cost.usd_per_hour:.2f} ({_hardware_of(one)})" for one in plans]
    stopped = [one for one in plans if one.running.idle_billing_s]
    stays = sorted(usd_per("month", one.running.bill) for one in stopped)
    idle = duration(stopped[0].running.idle_billing_s)
    return (
        f"**It costs** what Google bills your project: {least} to {most} per hour while a server runs; the software is free.\n"
        f"On Cloud Run, a server stops {idle} after its last request, and ${stays[0]:.2f} to ${stays[-1]:.2f} per month remain for storage and alerts. "
        "A TPU costs its full price until a teardown or the end of its run.\n"
    )


def _first_stacks(first: Mapping[str, Plan]) -> str:
    """Return the table of README.md, the number of all stacks, and what Google's own weights of the repack cost."""
    head = "stack | Gemma 4 weights | hardware | start | per hour | per day | without requests"
    rows = [(f"`{name}`", *_first_row(planned)) for name, planned in first.items()]
    own = plan(Question().changed(model=_OWN_26B, accelerator="RTX PRO 6000"))
    return (
        f"{table(head, rows)}\n"
        "Planned values at prices of 2026; those of TPUs are as public logs report them: "
        f"[all {len(shipped_files(ROOT))} stacks](docs/reference/stacks.md), [costs that the prices exclude](docs/costs.md#bill-items). "
        "`gemma init NAME --like STACK` copies one.\n"
        f"Google publishes no 4-bit 26B-A4B; its own `{_OWN_26B}` needs an {own.accelerator}, at ${own.cost.usd_per_hour:.2f} per hour.\n"
    )


def _first_row(planned: Plan) -> Sequence[str]:
    (size,) = re.findall(r"/gemma-4-(E\dB|\d+B(?:-A4B)?)-it", planned.model)
    owner = "an individual's repack" if CHECKPOINTS[planned.model].is_personal else "by Google"
    usd, run = planned.cost.usd_per_hour, planned.cost.most_usd_basis.removeprefix("one run of ")
    idle = planned.running.idle_billing_s
    stays = usd_per("month", planned.running.bill)
    after = f"{duration(idle)} at full price, then ${stays:.2f} per month"
    return (
        f"{size}, {_PRECISION.get(planned.quantization, planned.quantization)}, {owner}",
        _hardware_of(planned),
        planned.startup.ready_words.removeprefix("about ").replace(" ", "&nbsp;"),
        f"${usd:.2f}",
        f"${_DAY_H * usd:.2f}",
        after if idle else f"full price until the run expires ({run})",
    )


def _hardware_of(planned: Plan) -> str:
    if planned.platform == "cloud-run":
        return f"Cloud Run, one {planned.accelerator}"
    generation, _, chips = planned.accelerator.rpartition("-")
    return f"{_CHIPS[chips]} {generation} {'chip' if chips == '1' else 'chips'}"


def _judged_stacks() -> str:
    """Return of how many TPU stacks Google's compiler judged memory and programs, as a sentence."""
    answers = json.loads((ROOT / "dev" / "judges" / "compiled" / "answers.json").read_text(encoding="utf-8"))
    names = [stack_of_file(path.name) for path in shipped_files(ROOT)]
    judged = [answers[name] for name in names if name.startswith("tpu-")]
    built = sum(bool(one["built"]) for one in judged)
    compiled = sum(bool(one["programs"]) for one in judged)
    return (
        f"The compiler judged the memory of {built} of the {len(judged)} TPU stacks, and the programs of {compiled}.\n"
    )


def _vulnerable_rows() -> Iterator[Sequence[str]]:
    """Yield each image with the ids that apply to the stacks that have it; if none has, to all stacks of its platform."""
    deployed = {path: to_question(from_file(path, project="my-project"), path.parent) for path in shipped_files(ROOT)}
    for name, image in IMAGES.items():
        for_tpu = image.platform == "tpu"
        placed = {path: one for path, one in deployed.items() if (one.facts.platform == "tpu-vm") == for_tpu}
        matching = {path: one for path, one in placed.items() if one.image_version == image.version}
        plans = [plan(one.changed(image=image_of_version(image.version))) for one in (matching or placed).values()]
        ids = dict.fromkeys(each for one in plans for each in one.vulnerabilities)
        named = ", ".join(f"{each} (before {ADVISORIES[each].fixed})" for each in ids)
        yield (
            f"`{name}`",
            image.version,
            ", ".join(f"`{stack_of_file(path.name)}`" for path in matching),
            f"{len(ids)}: {named}" if ids else "0",
        )


def _described(path: Path) -> str:
    """Return the first sentence of the comment at the top of a settings file, without the line for editors."""
    lines = [line.lstrip("# ") for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# ")]
    text = " ".join(line for line in lines if not line.startswith("yaml-language-server"))
    return re.split(r"[.] ", text, maxsplit=1)[0].rstrip(".").replace("|", "/")


def local_cloud_catalog() -> str:
    """Return Google's offers for the local cloud, which imports nothing of the project."""
    gpus: dict[str, object] = {}
    for planned, name in CLOUD_RUN_GPUS.items():
        gpu, host = ACCELERATORS[planned].cloud_run, host_of(ACCELERATORS[planned], "cloud-run")
        gpus[name] = {
            "min_cpu": host.min_vcpu,
            "min_memory_gib": host.min_memory_gib,
            "max_cpu": host.most_vcpu,
            "max_memory_gib": host.max_memory_gib,
            "regions": [region for region in gpu.regions if region not in gpu.by_invitation],
            "new_project_quota": gpu.new_project_quota,
            "quota_metric": gpu.quota_metric,
            "quota_id": gpu.quota_id,
            "quota_units": gpu.quota_units,
        }
    prices = {key: {region: row.usd for region, row in price.regions.items()} for key, price in PRICES.items()}
    about = "Written by `make docs` from gemma_serving/planning/data: edit machines.json and prices.json there."
    tpus = {offer.api_name: _offered(family, offer) for family, offer in _created()}
    return json.dumps({"about": about, "gpus": gpus, "tpus": tpus, "prices": prices}, indent=1) + "\n"


def _created() -> Iterator[tuple[AcceleratorFamily, TpuOffer]]:
    """Yield the TPU generations that this project can create."""
    for family in FAMILIES.values():
        if family.tpu is not None and family.usable_gib is not None and not family.tpu.plan_only:
            yield family, family.tpu


def _offered(family: AcceleratorFamily, offer: TpuOffer) -> dict[str, object]:
    """Return what the local cloud needs of a TPU generation, with the Cloud TPU API's names."""
    return {
        "config_type": offer.config_type,
        "types": {api_accelerator_type(size.name): size.topology.partition(":")[2] for size in family.sizes},
        "zones": list(offer.zones),
        "flex_start_zones": list(offer.flex_start_zones),
        "runtime_version": offer.runtime_version,
        "boot_image": offer.boot_image,
        "quota_metric": offer.quota_metric,
        "quota_id": offer.quota_id,
        "instance_quota_metric": offer.instance_quota_metric,
        "instance_quota_id": offer.instance_quota_id,
        "instance_family": offer.instance_family,
        "machine_types": {
            size.machine_type: api_accelerator_type(size.name) for size in family.sizes if size.machine_type
        },
    }


def provider_machines() -> str:
    """Return the facts about TPUs for the provider, which imports nothing of the project."""
    machines = {api_accelerator_type(name): machine for name, machine in machine_types().items()}
    outside = {
        family.title: {
            "spellings": list(dict.fromkeys(map(comparable_name, (family.name, offer.api_name, *offer.spellings)))),
            "source": offer.source.partition(",")[0],
        }
        for family in FAMILIES.values()
        if (offer := family.tpu) is not None and "cloud-tpu" not in offer.apis
    }
    inside = [one.tpu.api_name for one in FAMILIES.values() if one.tpu is not None and "cloud-tpu" in one.tpu.apis]
    about = "Written by `make docs` from gemma_serving/planning/data/machines.json: edit that file."
    document = {"about": about, "generations": inside, "machine_types": machines, "outside": outside}
    return json.dumps(document, indent=1) + "\n"

"""The tools of the field reports that this project comes from, and what does their work here. `make docs` writes the table of docs/agent.md."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTool:
    """One tool of the reports."""

    name: str
    ours: tuple[str, ...] = ()
    """Tools of this server; empty if there is none."""
    why: str
    """How ours does it, or why there is none."""


NAMED_TOOLS: Final = (
    NamedTool(name="deploy_vllm", ours=("preview", "up"), why="Only a plan that was previewed is deployed."),
    NamedTool(
        name="destroy_vllm",
        ours=("teardown",),
        why="A person types the stack's name; a boolean of the model never deletes.",
    ),
    NamedTool(
        name="status_vllm", ours=("status",), why="Both targets, and what Google, the machine and the server say."
    ),
    NamedTool(
        name="update_vllm_scaling",
        ours=("preview", "up"),
        why="A person changes `minInstances` and `maxInstances` in the stack's file; files of the project are not for a model to write.",
    ),
    NamedTool(
        name="get_vllm_deployment_config",
        ours=("preview", "configuration_for"),
        why="What would be made, or a docker command.",
    ),
    NamedTool(
        name="get_vllm_gpu_deployment_config", ours=("configuration_for",), why="A GKE manifest as text, also for TPU."
    ),
    NamedTool(name="check_gpu_quotas", ours=("doctor", "capacity"), why="Quota of the stack, or of every place."),
    NamedTool(
        name="list_vertex_models",
        why="The project stages from the hub, a bucket or a folder and registers nothing in Vertex AI; `gcloud ai models list` lists what is there.",
    ),
    NamedTool(name="list_bucket_models", ours=("list_weights",), why="With sizes, and whether the copy is complete."),
    NamedTool(
        name="save_hf_token",
        why="A token never passes through a model: a person runs `python -m scripts.save_token hfToken --stack NAME`.",
    ),
    NamedTool(
        name="get_vertex_ai_model_copy_instructions",
        ours=("stage_weights",),
        why="Copies from a bucket such as that of Model Garden, instead of telling how.",
    ),
    NamedTool(
        name="get_huggingface_model_copy_instructions", ours=("stage_weights",), why="Copies, instead of telling how."
    ),
    NamedTool(
        name="get_huggingfacehub_download_path",
        why="Nothing is kept on this machine: weights go from the hub to the bucket or to the server.",
    ),
    NamedTool(name="get_system_status", ours=("status",), why="Without a stack it shows all."),
    NamedTool(name="get_endpoint", ours=("endpoint",), why="With the command that opens the way to it."),
    NamedTool(name="get_vllm_endpoint", ours=("endpoint",), why="The same."),
    NamedTool(
        name="get_model_details",
        ours=("status", "metrics", "plan"),
        why="What is served, its load, and the layout of its memory.",
    ),
    NamedTool(name="get_active_models", ours=("status", "metrics"), why="What a report asks `get_model_details` for."),
    NamedTool(name="get_system_details", ours=("status",), why="What a report asks `get_system_status` for."),
    NamedTool(name="verify_model_health", ours=("smoke", "status"), why="Checks against thresholds, not one prompt."),
    NamedTool(
        name="run_benchmark", ours=("benchmark",), why="With warm-up, validity and percentiles; results have names."
    ),
    NamedTool(name="query_gemma4", ours=("ask",), why="The answer is marked as data."),
    NamedTool(name="query_gemma4_with_stats", ours=("ask",), why="Every answer has its statistics."),
    NamedTool(name="query_queued_gemma4_with_stats", ours=("ask",), why="The same on a TPU, through the tunnel."),
    NamedTool(
        name="query_vllm",
        ours=("ask",),
        why="Chat messages only: the checkpoints are tuned for instructions, and raw completions skip their template.",
    ),
    NamedTool(
        name="analyze_cloud_logging",
        ours=("logs",),
        why="Known causes are recognised by rules; the lines are not given to the model that failed.",
    ),
    NamedTool(name="analyze_gpu_logs", ours=("logs", "recognise_failure"), why="The same."),
    NamedTool(
        name="suggest_sre_remediation",
        ours=("recognise_failure", "explain_finding"),
        why="The mend is this project's own, with figures of the plan.",
    ),
    NamedTool(
        name="get_help", ours=(), why="The protocol lists the tools; `gemma://pages/skill` says how to use them."
    ),
    NamedTool(
        name="get_metrics", ours=("metrics",), why="The figures that matter; `scripts.connect` opens the way to all."
    ),
    NamedTool(
        name="get_zones_with_available_quota", ours=("capacity",), why="Hardware, offer, quota and stock, told apart."
    ),
    NamedTool(name="find_tpu", ours=("capacity",), why="The same."),
    NamedTool(
        name="list_queued_resources",
        ours=("status",),
        why="Those of this project's stacks; others are not its business.",
    ),
    NamedTool(name="estimate_deployment_cost", ours=("plan", "solve"), why="`costs: true` shows the whole bill."),
    NamedTool(name="benchmark_report", ours=("benchmark",), why="The report is the resource `gemma://reports/NAME`."),
    NamedTool(name="benchmark_report_summary", ours=("benchmark",), why="The same."),
    NamedTool(name="benchmark_results", ours=("benchmark",), why="The same."),
    NamedTool(
        name="model_comparison",
        ours=("compare_benchmarks", "compare_machines"),
        why="Of two measurements, or of the plan on every machine.",
    ),
    NamedTool(
        name="cost_per_token_analysis", ours=("plan", "solve"), why="US dollars per million tokens, of the plan."
    ),
    NamedTool(
        name="backup_benchmark_results",
        why="Results are files in `.work/agent`; copying files is not this server's task.",
    ),
)


def names_table() -> str:
    """Return the table in Markdown."""
    lines = ["| their tool | ours | |", "| --- | --- | --- |"]
    for tool in NAMED_TOOLS:
        ours = ", ".join(f"`{name}`" for name in tool.ours) or "none"
        lines.append(f"| `{tool.name}` | {ours} | {tool.why} |")
    return "\n".join(lines) + "\n"

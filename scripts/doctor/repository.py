"""Check of the variables that the workflows read, in a project with the accounts of the workflows (docs/ci.md)."""

from collections.abc import Iterator, Mapping
from functools import partial

from cloud.google_api import lookup
from contracts.answers import Absent, Present
from engine import backend, runner
from scripts.doctor.diagnosis import Check, Checkup, Diagnosis, ok, unknown
from scripts.doctor.machine import answer_of


def checks(checkup: Checkup) -> Iterator[Check]:
    """Yield the check of a project whose states are in a bucket, as the workflows need it. It sends one request."""
    url = backend.chosen_url(runner.project_folder())
    if url.startswith("gs://"):
        yield Check(
            name="workflow variables", run=partial(_unset, checkup, variables(checkup.project, url)), required=False
        )


def variables(project: str, backend_url: str) -> Mapping[str, str]:
    """Return the repository's variables, with values as a shell reads them between double quotes (docs/ci.md)."""
    number = f"$(gcloud projects describe {project} --format='value(projectNumber)')"
    jobs = ("preview", "plan", "deploy", "teardown", "guard")
    return {
        "GCP_PROJECT": project,
        "GCP_WORKLOAD_IDENTITY_PROVIDER": f"projects/{number}/locations/global/workloadIdentityPools/github/providers/actions",
        **{f"GCP_{job.upper()}_SERVICE_ACCOUNT": f"ci-{job}@{project}.iam.gserviceaccount.com" for job in jobs},
        "PULUMI_BACKEND_URL": backend_url,
    }


def _unset(checkup: Checkup, wanted: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Yield the variables that the repository does not set; nothing if the project has no account that deploys from GitHub.

    They are unknown and not missing, because an organization may set them, and commands on this machine cannot read them.
    """
    account = f"v1/projects/{checkup.project}/serviceAccounts/{wanted['GCP_DEPLOY_SERVICE_ACCOUNT']}"
    found = lookup(checkup.google, "iam", account)
    if isinstance(found, Absent):
        return
    if not isinstance(found, Present):
        yield unknown(found.why, required=False)
        return
    listed = answer_of("gh", "variable", "list")
    if listed is None or listed.returncode != 0:
        detail = "`gh variable list` failed; docs/ci.md has the commands that set them"
        yield unknown(detail, required=False)
        return
    known = {line.partition("\t")[0] for line in listed.stdout.splitlines()}
    lacking = {name: value for name, value in wanted.items() if name not in known}
    if lacking:
        fix = "\n".join(f'gh variable set {name} --body "{value}"' for name, value in lacking.items())
        yield unknown(f"the repository does not set {', '.join(lacking)}", fix, required=False)
    else:
        yield ok(f"{len(wanted)} are set")

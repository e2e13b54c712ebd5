"""Cloud Run v2: jobs. They run no container: a job whose command is `nvidia-smi` logs its GPU's driver, and each execution succeeds."""

from typing import Final

from localcloud.json_values import JsonObject, part, parts, strings
from localcloud.rest.call import Call, Handler, check_id
from localcloud.rest.errors import CloudError
from localcloud.services.checks import check_labels, check_region
from localcloud.services.run_deployments import TYPE
from localcloud.services.run_limits import gpu_of
from localcloud.services.service import ApiService, listing, method, visible
from localcloud.world.cloud import Cloud

_JOBS: Final = "run.jobs"
_JOB_ID: Final = "[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
_DRIVERS: Final = {535: ("535.129.03", "12.2"), 580: ("580.65.06", "13.0")}
"""Branch -> the driver's version and its CUDA version, as `nvidia-smi` prints them."""
_NAMES: Final = {"nvidia-l4": "NVIDIA L4", "nvidia-rtx-pro-6000": "NVIDIA RTX PRO 6000 Blackwell"}


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of jobs."""
    return _RunJobs(cloud).handlers()


class _RunJobs(ApiService):
    prefix = "run.projects.locations.jobs"

    @method("create")
    def create(self, call: Call) -> JsonObject:
        check_region(call.name)
        name = f"{call.name}/jobs/{check_id(call.query.get('jobId'), 'jobId', _JOB_ID)}"
        if self._store.has(_JOBS, name):
            raise CloudError.already_exists(f"Resource '{name.rpartition('/')[2]}' already exists.")
        check_labels(call.body.get("labels"), "job.labels")
        _, _, _, region = call.name.split("/")
        gpu = gpu_of(_task(call.body))
        if gpu is not None and not self._cloud.scenario.run.gpus_of(region, gpu, zonal=False):
            raise CloudError.field(
                "job.template", f"You do not have quota for using GPUs ({gpu} in {region}: none left)."
            )
        document = {**call.body, "name": name, "createTime": self._cloud.timeline.stamp()}
        self._store.put(_JOBS, name, document)
        return self._done(call, {"@type": f"{TYPE}.Job", **visible(document)})

    @method("get")
    def get(self, call: Call) -> JsonObject:
        return visible(self._found(call))

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        check_region(call.name)
        return listing(call.query, "jobs", self.visible_under(_JOBS, f"{call.name}/jobs/"))

    @method("delete")
    def delete(self, call: Call) -> JsonObject:
        document = self._found(call)
        self._store.delete(_JOBS, call.name)
        return self._done(call, {"@type": f"{TYPE}.Job", **visible(document)})

    @method("run")
    def run(self, call: Call) -> JsonObject:
        task = _task(self._found(call))
        _, project, _, region, _, job = call.name.split("/")
        branch = self._cloud.scenario.run.gpu_drivers.get(gpu_of(task) or "")
        if branch is not None and ["nvidia-smi"] in [
            strings(each, "command")[:1] for each in parts(task, "containers")
        ]:
            version, cuda = _DRIVERS[branch]
            entry: JsonObject = {
                "logName": f"projects/{project}/logs/run.googleapis.com%2Fstdout",
                "resource": {"type": "cloud_run_job", "labels": {"job_name": job, "location": region}},
            }
            head = f"| NVIDIA-SMI {version}    Driver Version: {version}    CUDA Version: {cuda} |"
            for line in (head, f"|   0  {_NAMES[gpu_of(task) or '']}    Off |"):
                self._cloud.logs.write({**entry, "textPayload": line})
        return self._done(call, {"@type": f"{TYPE}.Execution", "job": job, "succeededCount": 1})

    def _found(self, call: Call) -> JsonObject:
        return self.stored(_JOBS, call.name, f"Resource '{call.name.rpartition('/')[2]}' of kind 'JOB' does not exist.")

    def _done(self, call: Call, response: JsonObject) -> JsonObject:
        duration_s = self._cloud.duration_s(self._cloud.scenario.operations.run_s)
        return self._cloud.operations.timed("run", call.location, duration_s=duration_s, response=response)


def _task(job: JsonObject) -> JsonObject:
    """Return the template of a job's tasks."""
    return part(part(job, "template"), "template")

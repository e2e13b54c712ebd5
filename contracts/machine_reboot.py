"""Command to reboot a TPU machine without releasing its capacity."""


def reboot_command(machine: str) -> str:
    """Return the command that reboots a machine, by its full name: projects/P/locations/Z/nodes/N or projects/P/zones/Z/instances/N.

    An instance is reset with the Compute Engine method `instances.reset`. Cloud TPU has only stop and start, which can lose the capacity.
    """
    _, project, _, zone, kind, name = machine.split("/")
    place = f"--project={project} --zone={zone}"
    if kind == "instances":
        return f"gcloud compute instances reset {name} {place}"
    return f'gcloud alpha compute tpus tpu-vm ssh {name} {place} --tunnel-through-iap --command="sudo reboot"'

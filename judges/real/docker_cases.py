"""The docker commands of the agent and their failures, for a real daemon and for the simulated docker."""

from pathlib import Path

from judges.real.docker_twins import KILL, NAME, PORT, READY, TwinCase


def cases(image: str, folder: Path) -> tuple[TwinCase, ...]:
    """Return the claims. `image` is a known reference with a digest; `folder` exists on the machine and `folder/none` does not."""
    repository = image.partition("@")[0]
    absent = f"{repository}@sha256:{'0' * 64}"
    serve = ("serve", "google/gemma-4-E2B-it", f"--port={PORT}", "--host=127.0.0.1")
    run = ("run", "-d", f"--name={NAME}", "--net=host", "--log-driver=json-file", "--log-opt=max-size=100m")
    started = (*run, "--label=a=b", "--entrypoint=vllm", image, *serve)
    state = '--format={{.State.Status}} {{.State.Running}} {{.State.ExitCode}} {{index .Config.Labels "a"}} {{index .Config.Labels "none"}}'
    inspected = ("inspect", state, NAME)
    missing_program = (*run, "--entrypoint=nothing", image)
    missing_device = (*run, f"--device={folder}/none:/dev/none", "--entrypoint=vllm", image, *serve)
    remove = ("rm", "-f", NAME)
    return (
        TwinCase(claim="pull by digest", argv=("pull", image)),
        TwinCase(claim="pull of a digest that does not exist", argv=("pull", absent)),
        TwinCase(claim="pull of an invalid reference", argv=("pull", "not an image")),
        TwinCase(
            claim="inspect of an image",
            argv=("inspect", "--type=image", "--format={{json .RepoDigests}}", image),
            compared=("code", "output", "errors"),
        ),
        TwinCase(
            claim="inspect of a missing image",
            argv=("inspect", "--type=image", "--format={{.Id}}", absent),
            compared=("code", "output", "errors"),
        ),
        TwinCase(
            claim="inspect of a missing container",
            argv=("inspect", "--type=container", "--format={{.Id}}", NAME),
            compared=("code", "output", "errors"),
        ),
        TwinCase(claim="logs of a missing container", argv=("logs", "--tail=5", NAME)),
        TwinCase(claim="stop of a missing container", argv=("stop", "-t", "1", NAME)),
        TwinCase(claim="forced removal of a missing container", argv=("rm", "-f", NAME)),
        TwinCase(claim="a program that the image lacks: 127", argv=missing_program),
        TwinCase(
            claim="the container of a program that the image lacks",
            argv=inspected,
            compared=("code", "output"),
            before=(missing_program,),
        ),
        TwinCase(claim="a device that does not exist", argv=missing_device, before=(remove,)),
        TwinCase(claim="the container of a device that does not exist", argv=inspected, compared=("code", "output")),
        TwinCase(
            claim="a file that cannot be executed: 126",
            argv=(*run, "--entrypoint=/etc/passwd", image),
            before=(remove,),
        ),
        TwinCase(
            claim="a device that is a folder",
            argv=(*run, f"--device={folder}:/dev/none", "--entrypoint=vllm", image, *serve),
            before=(remove,),
        ),
        TwinCase(
            claim="an option of `run` that does not exist: 125",
            argv=("run", "--nothing=1", image),
            before=(remove,),
        ),
        TwinCase(claim="an option of `ps` that does not exist", argv=("ps", "--nothing")),
        TwinCase(
            claim="a file of variables that does not exist: 125",
            argv=("run", "--rm", f"--env-file={folder}/none", image),
        ),
        TwinCase(claim="an invalid volume: 125", argv=("run", "--rm", "--volume=a:b:c:d", image)),
        TwinCase(
            claim="start in the background",
            argv=started,
            before=(remove,),
            compared=("code", "output", "errors"),
        ),
        TwinCase(
            claim="state, labels and an absent label of a running container",
            argv=inspected,
            compared=("code", "output", "errors"),
        ),
        TwinCase(claim="a name in use: 125", argv=started),
        TwinCase(claim="removal of an image in use", argv=("rmi", image), compared=("code",)),
        TwinCase(claim="removal of a running container without force", argv=("rm", NAME), compared=("code",)),
        TwinCase(
            claim="stop by SIGTERM",
            before=((READY, NAME),),
            argv=("stop", "-t", "20", NAME),
            compared=("code", "output", "errors"),
        ),
        TwinCase(claim="the container after its stop", argv=inspected, compared=("code", "output")),
        TwinCase(
            claim="the list of running containers without one",
            argv=("ps", "--quiet"),
            compared=("code", "output", "errors"),
        ),
        TwinCase(claim="removal", argv=("rm", NAME), compared=("code", "output", "errors")),
        TwinCase(
            claim="a killed server: 137",
            argv=inspected,
            before=(started, (KILL, NAME), ("wait", NAME)),
            compared=("code", "output"),
        ),
        TwinCase(
            claim="a wrong flag of the server: exit code 2",
            argv=("wait", NAME),
            before=(remove, (*run, "--entrypoint=vllm", image, *serve, "--nothing")),
            compared=("code", "output"),
        ),
        TwinCase(
            claim="the exit code of a container in the foreground",
            argv=("run", "--rm", f"--name={NAME}", "--entrypoint=vllm", image, *serve, "--nothing"),
            before=(remove,),
            compared=("code",),
        ),
        TwinCase(
            claim="a container with a restart policy that stops after each start",
            argv=("inspect", "--format={{.State.Running}}", NAME),
            before=((*run, "--restart=unless-stopped", "--entrypoint=vllm", image, *serve, "--nothing"),),
            compared=("code", "output"),
        ),
        TwinCase(
            claim="removal of a restarting container", argv=("rm", "-f", NAME), compared=("code", "output", "errors")
        ),
        TwinCase(claim="removal of an image", argv=("rmi", image), compared=("code", "errors")),
        TwinCase(claim="removal of a missing image", argv=("rmi", image)),
        TwinCase(
            claim="a login without a password",
            argv=("login", "--username=a", "--password-stdin", f"https://{image.partition('/')[0]}"),
        ),
    )

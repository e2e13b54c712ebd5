r"""Copy a stack's weights, drafter and adapters to its bucket.

  gemma stage_model l4-qat
  gemma stage_model l4-qat --list
  gemma stage_model l4-qat \
      --remove gemma-4-12B-it-0123456789abcdef

Copies from the Hugging Face hub, another bucket or a local folder. Each checkpoint has its own folder, named by the hash of its manifest, so the
files of a revision never change. Previews and creates the stack's bucket if it does not exist, and changes no other resource. Copies only missing
files, large ones in parallel parts. To create the bucket, it runs the program of the project's folder, with its virtual environment and its
provider plugins. You can rerun the command at any time, even after it was killed.
"""

import sys
from typing import Final

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import Command, Effect, run_command
from gemma_serving.scripts.stage_model.staging_options import StageOptions


def _stage_model(options: StageOptions) -> ExitCode:
    from gemma_serving.scripts.stage_model import staging

    return staging.stage_model(options)


COMMAND: Final = Command(
    name="stage_model",
    help=__doc__,
    options=StageOptions,
    run=_stage_model,
    effect=Effect.CHANGES,
    needs="settings",
    after_interrupt="Run the same command again to copy the missing parts.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))

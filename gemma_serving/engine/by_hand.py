"""The command `pulumi` of a local cloud beside an installed `gemma-serving`: the engine on PATH, in the folder of the trial."""

import os
import shutil
import sys
from pathlib import Path

from gemma_serving.contracts.installation import INSTALL_PULUMI
from gemma_serving.engine.trial import STATE_VARIABLE, main

if __name__ == "__main__":
    own = Path(os.environ.get(STATE_VARIABLE, ""), "bin")
    others = (folder for folder in os.environ.get("PATH", "").split(os.pathsep) if Path(folder) != own)
    engine = shutil.which("pulumi", path=os.pathsep.join(others))
    if engine is None:
        sys.exit(f"The Pulumi CLI is not installed. Run `{INSTALL_PULUMI}`.")
    sys.exit(main(engine, sys.argv[1:]))

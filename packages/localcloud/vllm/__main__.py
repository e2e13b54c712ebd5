"""`python -m localcloud.vllm COMMAND...`: run a container's command.

COMMAND is `serve MODEL ...`, `api_server --model MODEL ...`, or `hf download MODEL`.
"""

import sys

from localcloud.vllm.server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m localcloud.vllm serve MODEL ...` or `python -m localcloud.vllm api_server --model MODEL ...`."""

import sys

from localcloud.vllm.server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The plugin as a folder: `python packages/gcp-tpu` starts it. The language host does that, and so does the executable beside this file."""

from gcp_tpu_provider.__main__ import main

if __name__ == "__main__":
    main()

"""Entry point of the plugin folder: `python packages/gcp-tpu` starts it, used by the language host and the executable in this folder."""

from gcp_tpu_provider.__main__ import main

if __name__ == "__main__":
    main()

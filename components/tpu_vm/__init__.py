"""What runs on the TPU virtual machine: one constant start-up script, handed over as instance metadata."""

from components.tpu_vm.script import METADATA_VALUE_LIMIT_BYTES, startup_script

__all__ = ["METADATA_VALUE_LIMIT_BYTES", "startup_script"]

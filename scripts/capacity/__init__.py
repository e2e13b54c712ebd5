"""Compare the zones and regions for an accelerator."""

"""Compare the zones and regions for an accelerator: three gates, and own requests."""

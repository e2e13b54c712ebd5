"""Compare the zones and regions for an accelerator: three gates, pending requests and past grants."""

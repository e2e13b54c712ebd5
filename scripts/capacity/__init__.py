"""Compare the zones and regions where an accelerator could run: three gates, what waits, and what was granted before."""

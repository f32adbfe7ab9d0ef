"""The console command `pytest-charllm`: baselines and runs. It measures nothing and imports no torch."""

OK, REFUSED, BAD_INPUT = 0, 1, 2
"""Exit codes: done, something was refused, bad input (one line on stderr)."""

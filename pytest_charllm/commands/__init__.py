"""The console command `pytest-charllm`: baselines and runs. It measures nothing and imports no torch."""

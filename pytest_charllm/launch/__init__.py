"""One torchrun job: its command, environment, process tree, rank entry, end, and why it failed."""

"""Step times from a trainer's own log: one reader a trainer, one cleaning layer before all of them. No torch here."""

from pytest_charllm.engines.logs.read import READERS, read_log, read_logs

__all__ = ["READERS", "read_log", "read_logs"]

"""GPU models as data, and the machine that was found. Imports nothing of the project but errors."""

from pytest_charllm.hardware.machine import Device, Machine

__all__ = ["Device", "Machine"]

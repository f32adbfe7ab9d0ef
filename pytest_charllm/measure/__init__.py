"""From rank reports and telemetry to one measurement. Pure: no I/O, no clock, no device."""

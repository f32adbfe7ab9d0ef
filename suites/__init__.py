"""The suites: which scenarios are tested where, as data."""

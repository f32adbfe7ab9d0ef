"""Simulated boards behind the vendors' own calls, and the exact truth behind them to test estimators against."""

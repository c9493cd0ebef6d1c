"""Measurements: each module yields rows, which ``python scripts/bench NAME`` prints and ``gpu_report.py`` collects."""

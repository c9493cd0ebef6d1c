"""The parts of gpu_report.py: each module yields rows of a table."""

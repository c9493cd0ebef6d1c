"""Learning-rate schedules, one per file; all step once per update."""

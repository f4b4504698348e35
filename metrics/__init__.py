"""Metrics: every Prometheus metric of the daemon, defined once.  Knows nothing of the rest."""

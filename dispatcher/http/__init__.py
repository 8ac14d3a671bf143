"""HTTP for probes, Prometheus and people: /healthz, /readyz, /metrics and a page at /."""

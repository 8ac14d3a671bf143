"""HTTP for probes, Prometheus, programs and people: /healthz, /readyz, /metrics, /api/… and the page at /."""

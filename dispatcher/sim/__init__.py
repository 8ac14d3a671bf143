"""The deterministic simulator: the real dispatcher and SDK on virtual time, against modelled servers."""

"""How long messages wait when the leading dispatcher dies, stops, freezes, or all replicas are restarted."""

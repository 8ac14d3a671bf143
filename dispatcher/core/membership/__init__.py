"""Who consumes: joins, leaves, deaths and returns of incarnations."""

"""Recovery: what the journal says meets what the broker delivers again."""

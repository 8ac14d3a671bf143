"""What operators see of a lane, as plain values."""

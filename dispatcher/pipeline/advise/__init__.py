"""What would other options do? A lane's recorded arrivals, replayed through the real core on virtual time."""

"""Operations on what waits of one group: purge, move, reroute."""

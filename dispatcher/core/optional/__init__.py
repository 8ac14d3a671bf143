"""Features that a lane has only where its options ask for them."""

"""The pure core: decides which message goes to which consumer, and when.

No I/O, clock, randomness or logging. Events go in, effects come out, time is an argument.
"""

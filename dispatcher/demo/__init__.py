"""The main job on real input: a change history goes through a lane while processes are killed, and a
record of every handling proves that nothing was lost, doubled, out of order or handled twice at a time.
"""

from dispatcher.demo.run import run

__all__ = ["run"]

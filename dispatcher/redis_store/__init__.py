"""The lane's memory in Redis: owners, incarnations, command results and the journal.

`LaneStore` is what a lane's leader works with, `probe` what `dispatcher check` asks. Keys: keys.lua.
"""

from dispatcher.redis_store.probe import probe
from dispatcher.redis_store.store import LaneStore

__all__ = ["LaneStore", "probe"]

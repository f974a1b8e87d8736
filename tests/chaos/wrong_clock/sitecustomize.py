"""On the import path of one node: its Python processes are an hour ahead, in what they call the time of day."""

import time

AHEAD_S = 3600.0
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + AHEAD_S
time.time_ns = lambda: _time_ns() + int(AHEAD_S * 1e9)

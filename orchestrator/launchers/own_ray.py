"""Ray started for ourselves alone: out of reach of signals that are meant for us, and of other machines.

* A terminal, `timeout` and batch systems signal a whole process group. Ray's processes would end at once, under trials
  that are just about to checkpoint, and our own a minute later, when Ray's library has not found them again. So each gets
  a session of its own.
* On Linux Ray takes the address of a network interface and then listens on every one, whatever `_node_ip_address` says.
  On systems where it supports no clusters it takes the loopback address and listens there only; a variable moves Linux
  among those.

Ray (2.60) has no setting for either.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""For the environment of Ray's processes."""


@contextmanager
def own_ray() -> Iterator[None]:
    """Start what Ray starts within this block in a session of its own each, with loopback addresses."""
    # Not above: whoever reads `LOOPBACK` need not wait for Ray.
    from ray._private import ray_constants, services

    popen, clusters = services.ConsolePopen, ray_constants.ENABLE_RAY_CLUSTER
    services.ConsolePopen = functools.partial(popen, start_new_session=True)  # type: ignore[misc, assignment]
    # Read from the environment when Ray was imported.
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        services.ConsolePopen = popen  # type: ignore[misc]
        ray_constants.ENABLE_RAY_CLUSTER = clusters

"""Who runs when and where: the policy, what it reads, and the simulator that runs it in advance. Only `planned.py` knows sweeps."""

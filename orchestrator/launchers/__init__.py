"""Ways to start the ranks of a trial, behind the protocol of control/launcher_port.py."""

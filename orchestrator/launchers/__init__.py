"""Ways to start the ranks of a trial, behind the protocol of launchers/protocol.py."""

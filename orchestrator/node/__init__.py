"""Processes on the node of a trial: supervisor, fork server, ranks."""

"""What runs on the node of a trial: the supervisor, its fork server, the rank processes and what they report."""

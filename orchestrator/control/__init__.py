"""The control loop of a sweep: trial states, retries, failure classification and status."""

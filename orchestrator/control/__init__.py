"""Control loop of a sweep: trial states, retries, failure classifier, status."""

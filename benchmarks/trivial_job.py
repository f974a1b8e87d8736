"""A trial that only reports: what is left of its time is the orchestrator's."""


def run(request, spec, reporter):
    reporter.metrics(1, {"train/loss": 1.0})
    return {"train/loss": 1.0}

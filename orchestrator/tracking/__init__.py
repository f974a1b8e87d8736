"""Journal to MLflow, by a process of its own.

Training never talks to the tracker. Everything sent is a pure function of the trial directories, with the
original timestamps, so sending twice changes nothing and an outage only delays.

    places.py          where the tracker and its artifacts are
    layout.py          what a run is called, its tags, params and status; pure
    look.py            where a trial stands
    page.py            columns and charts of the MLflow page; pure
    journal_points.py  journal lines to batches of points
    progress.py        how far each run was sent: tracking.json
    store.py           the only file that meets mlflow
    sending.py         one round over a sweep; trial_sending.py and submission_sending.py: one run of it
    exporter.py         the process: rounds, outages, the way it ends
    supervise.py       its other end: start it beside a sweep, drain it
"""

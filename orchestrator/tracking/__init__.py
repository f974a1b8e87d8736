"""Export of journals to MLflow, by a process of its own.

Training never talks to the tracker. What is sent is a pure function of the trial directories, with
the original timestamps. So sending twice changes nothing, and an outage only delays.

    tracking_uri.py      where the tracker and its artifacts are
    run_schema.py        names, tags, params and status of runs; pure
    trial_view.py        state of a trial
    mlflow_page.py       columns and charts of the MLflow page; pure
    journal_reader.py    journal lines to batches of points
    sync_state.py        how far each run was sent: tracking.json
    corpus_dataset.py    corpora as data sets of MLflow; pure
    mlflow_client.py     the only file that imports mlflow
    sync_sweep.py        one round over a sweep; sync_run.py: one run of it
    page_requests.py     cancel and retry tags of the page
    exporter.py          the process: rounds, outages, the way it ends
    exporter_process.py  its parent's side: start it beside a sweep, drain it
    other_trackers/      copies for Weights & Biases and trackio
"""

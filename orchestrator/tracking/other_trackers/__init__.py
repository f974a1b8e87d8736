"""Copies of a sweep for trackers other than MLflow: files, without a network.

run_copy.py        a trial as any tracker takes it, and the protocol of those that write it
wandb_offline.py   folders that `wandb sync` uploads; the only file that imports wandb
trackio_folder.py  the folder that `trackio show` reads; the only file that imports trackio
"""

"""Journal to MLflow: layout of the runs and the shipper."""

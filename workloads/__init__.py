"""What one trial computes: data, architectures, training, evaluation. Knows neither Ray nor MLflow."""

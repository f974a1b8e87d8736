"""The scheduler on a simulated cluster, with a summary and a Gantt chart."""

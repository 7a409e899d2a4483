"""What really happened: start-up logs and running servers read, and held against what kvplan predicts."""

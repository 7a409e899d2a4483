"""The inverse question: from a workload and its limits to hardware, engine and settings."""

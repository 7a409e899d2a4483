"""What happens over time: workloads and traces through a scheduler, a paged pool, tiers and a step-time model."""

"""Questions beyond one estimate, answered: what each technique did, how models compare, which lever to pull."""

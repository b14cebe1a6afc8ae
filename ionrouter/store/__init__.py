"""What survives a restart: keys (and, later, budgets, generations, statistics)."""

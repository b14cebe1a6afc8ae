"""What survives a restart: keys, what they spent, generations, and the reports made of them."""

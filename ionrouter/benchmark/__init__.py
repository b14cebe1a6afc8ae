"""What a gateway costs: a mock upstream, a load, and processes to measure. Knows no router."""

"""Where a request should go now: pure functions of (route, health, now, rng). Never calls a clock."""

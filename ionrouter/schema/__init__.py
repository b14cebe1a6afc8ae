"""Wire types and the values that pass between the stages. Knows JSON, not HTTP, routing or engines."""

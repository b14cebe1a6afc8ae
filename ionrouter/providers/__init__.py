"""Ways to reach an endpoint. Each provider is one method, `stream`."""

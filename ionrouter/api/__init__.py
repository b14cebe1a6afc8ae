"""The HTTP edge: aiohttp.web handlers. Knows the router's interface, not how it decides."""

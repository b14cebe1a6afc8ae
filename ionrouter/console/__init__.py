"""The web page at /console/: static files, and what sends them. All that it shows it asks of the API."""

"""The production router under a made-up world, in virtual time. Serves nobody and opens no connection."""

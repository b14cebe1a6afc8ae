"""Alembic's revisions of the tables, oldest first."""

CREATE TABLE api_key (
    hash       TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    label      TEXT NOT NULL,
    kind       TEXT NOT NULL CHECK (kind IN ('inference', 'management')),
    disabled   INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL
) STRICT;

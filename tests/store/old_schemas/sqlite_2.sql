ALTER TABLE api_key ADD COLUMN spend_limit REAL;
ALTER TABLE api_key ADD COLUMN limit_reset TEXT CHECK (limit_reset IN ('daily', 'weekly', 'monthly'));
ALTER TABLE api_key ADD COLUMN expires_at REAL;
ALTER TABLE api_key ADD COLUMN include_byok_in_limit INTEGER NOT NULL DEFAULT 0;
ALTER TABLE api_key ADD COLUMN updated_at REAL;
ALTER TABLE api_key ADD COLUMN creator_user_id TEXT;
CREATE TABLE key_version (version INTEGER NOT NULL) STRICT;
INSERT INTO key_version VALUES (0);
CREATE TABLE key_usage (
    key_hash     TEXT NOT NULL,
    day          INTEGER NOT NULL,
    cost         REAL NOT NULL,
    num_requests INTEGER NOT NULL,
    last_used_at REAL NOT NULL,
    PRIMARY KEY (key_hash, day)
) STRICT, WITHOUT ROWID;
CREATE TABLE generation (
    id                   TEXT PRIMARY KEY,
    state                TEXT NOT NULL,
    key_hash             TEXT,
    kind                 TEXT NOT NULL,
    requested_model      TEXT NOT NULL,
    is_stream            INTEGER NOT NULL,
    started_at           REAL NOT NULL,
    session_id           TEXT,
    user                 TEXT,
    user_agent           TEXT,
    referer              TEXT,
    title                TEXT,
    status               INTEGER,
    model                TEXT,
    endpoint             TEXT,
    provider             TEXT,
    duration_s           REAL,
    ttft_s               REAL,
    finish_reason        TEXT,
    native_finish_reason TEXT,
    service_tier         TEXT,
    upstream_id          TEXT,
    prompt_tokens        INTEGER NOT NULL,
    completion_tokens    INTEGER NOT NULL,
    cached_tokens        INTEGER NOT NULL,
    reasoning_tokens     INTEGER NOT NULL,
    is_usage_estimated   INTEGER NOT NULL,
    cost                 REAL NOT NULL,
    error                TEXT,
    attempts             TEXT NOT NULL
) STRICT;
CREATE INDEX generation_started ON generation (started_at);
CREATE INDEX generation_key ON generation (key_hash, started_at);
CREATE INDEX generation_unfinished ON generation (state) WHERE state = 'started';
CREATE TABLE generation_words (
    id         TEXT PRIMARY KEY,
    started_at REAL NOT NULL,
    input      TEXT NOT NULL,
    completion TEXT,
    reasoning  TEXT
) STRICT;
CREATE INDEX generation_words_started ON generation_words (started_at);

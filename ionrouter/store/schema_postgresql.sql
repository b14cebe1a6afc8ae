CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY);
CREATE TABLE api_key (
    hash TEXT NOT NULL,
    name TEXT NOT NULL,
    label TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('inference', 'management')),
    disabled INTEGER DEFAULT 0 NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    spend_limit DOUBLE PRECISION,
    limit_reset TEXT CHECK (limit_reset IN ('daily', 'weekly', 'monthly')),
    expires_at DOUBLE PRECISION,
    include_byok_in_limit INTEGER DEFAULT 0 NOT NULL,
    updated_at DOUBLE PRECISION,
    creator_user_id TEXT,
    PRIMARY KEY (hash)
);
CREATE TABLE batch (
    id TEXT NOT NULL,
    key_hash TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    model TEXT NOT NULL,
    headers TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL,
    finalized_at DOUBLE PRECISION,
    error TEXT,
    owner TEXT,
    lease_until DOUBLE PRECISION,
    num_requests INTEGER NOT NULL,
    num_completed INTEGER DEFAULT 0 NOT NULL,
    num_failed INTEGER DEFAULT 0 NOT NULL,
    prompt_tokens BIGINT DEFAULT 0 NOT NULL,
    completion_tokens BIGINT DEFAULT 0 NOT NULL,
    cost DOUBLE PRECISION DEFAULT 0 NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX batch_key ON batch (key_hash, created_at);
CREATE INDEX batch_status ON batch (status);
CREATE TABLE batch_line (
    batch_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    custom_id TEXT NOT NULL,
    body TEXT NOT NULL,
    status INTEGER,
    request_id TEXT,
    answer TEXT,
    PRIMARY KEY (batch_id, number)
);
CREATE TABLE generation (
    id TEXT NOT NULL,
    state TEXT NOT NULL,
    key_hash TEXT,
    kind TEXT NOT NULL,
    requested_model TEXT NOT NULL,
    is_stream INTEGER NOT NULL,
    started_at DOUBLE PRECISION NOT NULL,
    session_id TEXT,
    "user" TEXT,
    user_agent TEXT,
    referer TEXT,
    title TEXT,
    status INTEGER,
    model TEXT,
    endpoint TEXT,
    provider TEXT,
    duration_s DOUBLE PRECISION,
    ttft_s DOUBLE PRECISION,
    finish_reason TEXT,
    native_finish_reason TEXT,
    service_tier TEXT,
    upstream_id TEXT,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    is_usage_estimated INTEGER NOT NULL,
    cost DOUBLE PRECISION NOT NULL,
    error TEXT,
    attempts TEXT NOT NULL,
    reserved DOUBLE PRECISION DEFAULT 0 NOT NULL,
    instance TEXT,
    queue_s DOUBLE PRECISION,
    num_tool_calls INTEGER DEFAULT 0 NOT NULL,
    num_bad_tool_calls INTEGER DEFAULT 0 NOT NULL,
    source_id TEXT,
    PRIMARY KEY (id)
);
CREATE INDEX generation_key ON generation (key_hash, started_at);
CREATE INDEX generation_running ON generation (key_hash) WHERE state = 'started';
CREATE INDEX generation_started ON generation (started_at);
CREATE TABLE generation_words (
    id TEXT NOT NULL,
    started_at DOUBLE PRECISION NOT NULL,
    input TEXT NOT NULL,
    completion TEXT,
    reasoning TEXT,
    PRIMARY KEY (id)
);
CREATE INDEX generation_words_started ON generation_words (started_at);
CREATE TABLE key_change (
    version INTEGER NOT NULL,
    hash TEXT NOT NULL,
    PRIMARY KEY (version)
);
CREATE TABLE key_usage (
    key_hash TEXT NOT NULL,
    day INTEGER NOT NULL,
    cost DOUBLE PRECISION NOT NULL,
    num_requests INTEGER NOT NULL,
    last_used_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (key_hash, day)
);
CREATE TABLE key_version (
    version INTEGER NOT NULL
);
CREATE TABLE stats_bucket (
    series BIGINT NOT NULL,
    width_s INTEGER NOT NULL,
    number INTEGER NOT NULL,
    data BYTEA NOT NULL,
    PRIMARY KEY (series, width_s, number)
);
CREATE TABLE stats_series (
    id BIGINT NOT NULL,
    instance TEXT NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX stats_series_instance ON stats_series (instance);
INSERT INTO alembic_version VALUES ('0008');
INSERT INTO key_version VALUES (0);

-- Every table of the durable core. States, keys and invariants: docs/core.md section 1.
-- JSON that is hashed, or only carried, is kept as text so that integers keep their digits.

CREATE TABLE schema (
  version         int NOT NULL,
  compatible_from int NOT NULL,
  one_row         bool PRIMARY KEY DEFAULT true CHECK (one_row)
);

CREATE TABLE owners (
  id               text PRIMARY KEY,
  running_max      int,
  queued_max       int,
  writes_per_s     real,
  writes_burst     int,
  created_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE sessions (
  id               text PRIMARY KEY,
  owner            text NOT NULL,
  create_key       text,
  create_print     text,
  parent           text,
  parent_through   bigint,
  parent_number    int,
  title            text,
  meta             text NOT NULL DEFAULT '{}',
  state            text NOT NULL DEFAULT '{}',
  seq              bigint NOT NULL DEFAULT 0,
  revision         bigint NOT NULL DEFAULT 0,
  tail             bytea NOT NULL,
  next_position    bigint NOT NULL DEFAULT 1,
  next_number      int NOT NULL DEFAULT 1,
  open_turn        uuid,
  open_epoch       bigint,
  open_token       uuid,
  last_commit      text,
  last_seq         bigint,
  inbox_waiting    int NOT NULL DEFAULT 0,
  created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  active_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT sessions_open_whole CHECK ((open_turn IS NULL) = (open_epoch IS NULL)
                                    AND (open_turn IS NULL) = (open_token IS NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE UNIQUE INDEX sessions_create_key ON sessions (owner, create_key) WHERE create_key IS NOT NULL;
-- active_at moves only when a turn opens or ends and with records outside turns, so that appends stay HOT.
CREATE INDEX sessions_of_owner ON sessions (owner, active_at DESC, id DESC);
CREATE INDEX sessions_of_parent ON sessions (parent) WHERE parent IS NOT NULL;

CREATE TABLE records (
  session_id       text NOT NULL,
  seq              bigint NOT NULL,
  turn             int,
  kind             text NOT NULL,
  at               timestamptz NOT NULL,
  data             text NOT NULL,
  digest           bytea NOT NULL,
  PRIMARY KEY (session_id, seq)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);

CREATE TABLE turns (
  id               uuid PRIMARY KEY,
  session_id       text NOT NULL,
  owner            text NOT NULL,
  pool             text NOT NULL DEFAULT 'turns',
  position         bigint NOT NULL,
  number           int,
  origin           text NOT NULL CHECK (origin IN ('user', 'inbox', 'task')),
  parent           text,
  status           text NOT NULL CHECK (status IN ('queued', 'ready', 'running', 'waiting', 'ended',
                                                   'cancelled', 'refused', 'expired')),
  outcome          text CHECK (outcome IN ('completed', 'partial', 'failed', 'cancelled', 'interrupted')),
  code             text,
  key              text,
  fingerprint      text NOT NULL,
  message          text,
  command          text,
  meta             text,
  resumes          uuid,
  run_id           text NOT NULL,
  agent            text NOT NULL DEFAULT '',
  agent_revision   text NOT NULL DEFAULT '1',
  on_worker_loss   text NOT NULL DEFAULT 'continue' CHECK (on_worker_loss IN ('continue', 'interrupt')),
  history          text NOT NULL DEFAULT 'per-step' CHECK (history IN ('per-step', 'whole-turn')),
  priority         smallint NOT NULL DEFAULT 1 CHECK (priority BETWEEN 0 AND 2),
  due_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
  deadline         timestamptz,
  admitted_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  opened_at        timestamptz,
  admitted_seq     bigint NOT NULL DEFAULT 0,
  started_seq      bigint,
  ended_at         timestamptz,
  attempts         int NOT NULL DEFAULT 0,
  suspect          bool NOT NULL DEFAULT false,
  alive_losses     int NOT NULL DEFAULT 0,
  stepped          bool NOT NULL DEFAULT false,
  max_duration_s   real,
  last_failure     text,
  usage            text,
  end_commit       text,
  lease_owner      text,
  epoch            bigint NOT NULL DEFAULT 0,
  token            uuid,
  expires_at       timestamptz,
  CONSTRAINT turns_opened_end CHECK (number IS NULL OR status NOT IN ('cancelled', 'refused', 'expired')),
  CONSTRAINT turns_leased CHECK (status <> 'running'
                                 OR (token IS NOT NULL AND expires_at IS NOT NULL AND lease_owner IS NOT NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE UNIQUE INDEX turns_one_live ON turns (session_id) WHERE status IN ('ready', 'running', 'waiting');
CREATE UNIQUE INDEX turns_position ON turns (session_id, position);
CREATE INDEX turns_unfinished ON turns (session_id, position)
  WHERE status IN ('queued', 'ready', 'running', 'waiting');
CREATE INDEX turns_ready ON turns (pool, agent_revision, owner, priority, due_at, id) WHERE status = 'ready';
CREATE INDEX turns_due ON turns (pool, due_at) WHERE status = 'ready';
CREATE INDEX turns_owed ON turns (owner) WHERE status IN ('queued', 'ready');
CREATE INDEX turns_running ON turns (owner) WHERE status = 'running';
CREATE INDEX turns_expiring ON turns (expires_at) WHERE status = 'running';
CREATE INDEX turns_held ON turns (lease_owner) WHERE status = 'running';
CREATE INDEX turns_deadline ON turns (deadline) WHERE deadline IS NOT NULL AND status IN ('queued', 'ready');
CREATE INDEX turns_ended ON turns (ended_at) WHERE status IN ('ended', 'cancelled', 'refused', 'expired');

CREATE TABLE session_keys (
  session_id       text NOT NULL,
  space            text NOT NULL CHECK (space IN ('turn', 'run', 'inbox', 'task', 'commit')),
  key              text NOT NULL,
  fingerprint      text NOT NULL,
  answer           text NOT NULL,
  created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (session_id, space, key)
);

CREATE TABLE tool_calls (
  session_id       text NOT NULL,
  turn_id          uuid NOT NULL,
  invocation_id    text NOT NULL,
  step             int NOT NULL,
  ordinal          int NOT NULL,
  name             text NOT NULL,
  argument_digest  text NOT NULL,
  token            text NOT NULL,
  state            text NOT NULL CHECK (state IN ('planned', 'started', 'done', 'failed', 'unknown')),
  result           text,
  result_seq       bigint,
  started_at       timestamptz,
  settled_at       timestamptz,
  PRIMARY KEY (session_id, turn_id, invocation_id)
) WITH (fillfactor = 80);

CREATE TABLE deliveries (
  child            text PRIMARY KEY,
  parent           text NOT NULL,
  body             text NOT NULL,
  tries            int NOT NULL DEFAULT 0,
  due_at           timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX deliveries_due ON deliveries (due_at);

CREATE TABLE media (
  session_id       text NOT NULL,
  digest           bytea NOT NULL,
  media_type       text NOT NULL,
  size_bytes       int NOT NULL,
  refs             int NOT NULL DEFAULT 0,
  data             bytea NOT NULL,
  created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (session_id, digest)
);

CREATE TABLE workers (
  id               text PRIMARY KEY,
  host             text NOT NULL,
  pid              int NOT NULL,
  queues           text[] NOT NULL,
  revisions        text[] NOT NULL,
  capacity         int NOT NULL,
  held             int NOT NULL DEFAULT 0,
  version          text NOT NULL,
  draining         bool NOT NULL DEFAULT false,
  started_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  last_seen        timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

CREATE TABLE sweep_leases (
  name             text PRIMARY KEY,
  holder           text,
  epoch            bigint NOT NULL DEFAULT 0,
  token            uuid,
  expires_at       timestamptz
);

CREATE TABLE api_keys (
  id               text PRIMARY KEY,
  owner            text NOT NULL,
  name             text NOT NULL DEFAULT '',
  digest           bytea NOT NULL UNIQUE,
  created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  revoked_at       timestamptz
);
CREATE INDEX api_keys_of_owner ON api_keys (owner);

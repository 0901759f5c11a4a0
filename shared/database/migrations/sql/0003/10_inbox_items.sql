-- Inbox items that wait, or that an unfinished inbox turn has claimed. Which ids were ever delivered is kept in session_keys
-- (space 'inbox'): an item is deleted with its outcome. What the row of its inbox turn is made of travels with it, and how
-- often it may be tried. `due_at` is when the sweep looks at it: a while after the host refused its turn, else once an hour, as
-- a repair of what should never be.

CREATE TABLE inbox_items (
  session_id       text NOT NULL,
  id               text NOT NULL,
  seq              bigint NOT NULL,
  source           text NOT NULL,
  content          text NOT NULL,
  attempts         int NOT NULL DEFAULT 0,
  attempts_max     int NOT NULL DEFAULT 2,
  turn_id          uuid,
  agent            text,
  agent_revision   text,
  meta             text,
  delivered_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  due_at           timestamptz NOT NULL DEFAULT clock_timestamp() + interval '1 hour',
  PRIMARY KEY (session_id, id)
) WITH (fillfactor = 80);
CREATE INDEX inbox_items_waiting ON inbox_items (session_id, seq) WHERE turn_id IS NULL;
CREATE INDEX inbox_items_due ON inbox_items (due_at) WHERE turn_id IS NULL;

-- The last record of a turn's opening commit: whether it wrote anything is whether a record of it stands after that.
ALTER TABLE turns ADD COLUMN opened_seq bigint;

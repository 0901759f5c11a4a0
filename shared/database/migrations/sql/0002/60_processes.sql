-- What processes say of themselves: the lag of their event loops, and what each pool has done since the system began.

ALTER TABLE workers ADD COLUMN lag_s real NOT NULL DEFAULT 0, ADD COLUMN overloaded bool NOT NULL DEFAULT false;

-- Totals over all processes, those that have ended too. A process that is killed loses what it had not added yet.
CREATE TABLE pool_totals (
  pool             text NOT NULL,
  name             text NOT NULL,
  total            bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (pool, name)
) WITH (fillfactor = 50);

-- Rows are locked in one order, so that two processes never wait for each other.
CREATE FUNCTION pool_totals_add_v1(p_pools text[], p_names text[], p_counts bigint[]) RETURNS void
LANGUAGE sql AS $$
  INSERT INTO pool_totals AS t (pool, name, total)
    SELECT added.pool, added.name, added.n FROM unnest(p_pools, p_names, p_counts) AS added (pool, name, n)
      ORDER BY added.pool, added.name
    ON CONFLICT (pool, name) DO UPDATE SET total = t.total + excluded.total;
$$;

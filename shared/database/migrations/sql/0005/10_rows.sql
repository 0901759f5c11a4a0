-- What a change of a row costs. A CHECK is parsed anew by every statement that writes the row, constants byte by byte: half of
-- the cost of an insert. Each table is judged by one function now, whose plan is kept. And no index names what opening a turn
-- changes, so that it touches no index at all. Decision 0024.

CREATE FUNCTION turn_row_holds_v1(p_status text, p_outcome text, p_origin text, p_on_worker_loss text, p_history text,
                                  p_priority smallint, p_number int, p_ended_at timestamptz, p_token uuid,
                                  p_expires_at timestamptz, p_lease_owner text)
RETURNS bool
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN p_status IN ('queued', 'ready', 'running', 'waiting', 'ended', 'cancelled', 'refused', 'expired')
     AND (p_outcome IS NULL OR p_outcome IN ('completed', 'partial', 'failed', 'cancelled', 'interrupted'))
     AND p_origin IN ('user', 'inbox', 'task')
     AND p_on_worker_loss IN ('continue', 'interrupt')
     AND p_history IN ('per-step', 'whole-turn')
     AND p_priority BETWEEN 0 AND 2
     AND (p_number IS NULL OR p_status NOT IN ('cancelled', 'refused', 'expired'))
     AND (p_ended_at IS NULL) = (p_status IN ('queued', 'ready', 'running', 'waiting'))
     AND (p_status <> 'running' OR (p_token IS NOT NULL AND p_expires_at IS NOT NULL AND p_lease_owner IS NOT NULL));
END $$;
ALTER TABLE turns
  DROP CONSTRAINT turns_status_check, DROP CONSTRAINT turns_outcome_check, DROP CONSTRAINT turns_origin_check,
  DROP CONSTRAINT turns_on_worker_loss_check, DROP CONSTRAINT turns_history_check, DROP CONSTRAINT turns_priority_check,
  DROP CONSTRAINT turns_opened_end, DROP CONSTRAINT turns_leased,
  ADD CONSTRAINT turns_hold CHECK (turn_row_holds_v1(status, outcome, origin, on_worker_loss, history, priority, number,
                                                     ended_at, token, expires_at, lease_owner));

CREATE FUNCTION session_key_holds_v1(p_space text) RETURNS bool
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN p_space IN ('turn', 'run', 'inbox', 'task', 'commit');
END $$;
ALTER TABLE session_keys
  DROP CONSTRAINT session_keys_space_check,
  ADD CONSTRAINT session_keys_hold CHECK (session_key_holds_v1(space));

CREATE FUNCTION tool_call_holds_v1(p_state text) RETURNS bool
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN p_state IN ('planned', 'started', 'done', 'failed', 'unknown');
END $$;
ALTER TABLE tool_calls
  DROP CONSTRAINT tool_calls_state_check,
  ADD CONSTRAINT tool_calls_hold CHECK (tool_call_holds_v1(state));

-- The same of a trigger's condition: a row is ended by what gives it its `ended_at`.
DROP TRIGGER turns_task_ends ON turns;
CREATE TRIGGER turns_task_ends BEFORE UPDATE OF status ON turns FOR EACH ROW
  WHEN (NEW.origin = 'task' AND NEW.ended_at IS NOT NULL AND OLD.ended_at IS NULL) EXECUTE FUNCTION task_owe_v1();

-- Positions do not change once a turn has opened, numbers come with opening. The turns of a session that opened have ascending
-- numbers in the order of their positions, so either finds the other.
DROP INDEX turns_opened;
CREATE INDEX turns_of_origin ON turns (session_id, origin, position);
DROP INDEX turns_tasks_late;
CREATE INDEX turns_tasks_late ON turns (deadline)
  WHERE origin = 'task' AND deadline IS NOT NULL AND status IN ('ready', 'running', 'waiting');

-- A session's turn by its number, or a row of nulls: by halving the positions, at most a probe for each binary digit of them.
CREATE FUNCTION turn_numbered_v1(p_session text, p_number int) RETURNS turns
LANGUAGE plpgsql AS $$
DECLARE v_low bigint := 0; v_high bigint; v_middle bigint; v_turn turns;
BEGIN
  SELECT next_position INTO v_high FROM sessions WHERE id = p_session;
  WHILE v_low < v_high LOOP
    -- The newest first: it is the one that is asked for nearly always.
    v_middle := CASE WHEN v_middle IS NULL THEN v_high - 1 ELSE (v_low + v_high) / 2 END;
    SELECT * INTO v_turn FROM turns
      WHERE session_id = p_session AND position >= v_middle AND number IS NOT NULL ORDER BY position LIMIT 1;
    IF v_turn.number = p_number THEN RETURN v_turn; END IF;
    IF v_turn.id IS NULL OR v_turn.number > p_number THEN v_high := v_middle; ELSE v_low := v_turn.position + 1; END IF;
  END LOOP;
  RETURN NULL;
END $$;

-- The id of a user's turn by its number, or NULL.
CREATE FUNCTION turn_user_numbered_v1(p_session text, p_number int) RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE v_turn turns := turn_numbered_v1(p_session, p_number);
BEGIN
  RETURN CASE WHEN v_turn.origin = 'user' THEN v_turn.id END;
END $$;

-- Named leases of the sweeps: one holder at a time, judged by the database's clock, fenced by epoch and token.

CREATE FUNCTION lease_acquire_v1(p_name text, p_holder text, p_lease_s real)
RETURNS TABLE (acquired bool, epoch bigint, token uuid, expires_in_s double precision)
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_lease sweep_leases; v_now timestamptz;
BEGIN
  INSERT INTO sweep_leases (name) VALUES (p_name) ON CONFLICT DO NOTHING;
  SELECT * INTO v_lease FROM sweep_leases WHERE name = p_name FOR NO KEY UPDATE;
  v_now := clock_timestamp();
  IF v_lease.token IS NOT NULL AND v_lease.expires_at >= v_now THEN
    RETURN QUERY SELECT false, NULL::bigint, NULL::uuid, extract(epoch FROM v_lease.expires_at - v_now)::double precision; RETURN;
  END IF;
  RETURN QUERY UPDATE sweep_leases l SET holder = p_holder, epoch = l.epoch + 1, token = gen_random_uuid(),
      expires_at = v_now + make_interval(secs => p_lease_s) WHERE l.name = p_name
    RETURNING true, l.epoch, l.token, p_lease_s::double precision;
END $$;

CREATE FUNCTION lease_renew_v1(p_name text, p_epoch bigint, p_token uuid, p_lease_s real) RETURNS bool
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_lease sweep_leases; v_now timestamptz;
BEGIN
  SELECT * INTO v_lease FROM sweep_leases WHERE name = p_name FOR NO KEY UPDATE;
  v_now := clock_timestamp();
  IF v_lease.token IS DISTINCT FROM p_token OR v_lease.epoch IS DISTINCT FROM p_epoch OR v_lease.expires_at < v_now THEN
    RETURN false;
  END IF;
  UPDATE sweep_leases SET expires_at = v_now + make_interval(secs => p_lease_s) WHERE name = p_name;
  RETURN true;
END $$;

CREATE FUNCTION lease_release_v1(p_name text, p_epoch bigint, p_token uuid) RETURNS bool
LANGUAGE plpgsql SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  UPDATE sweep_leases SET holder = NULL, token = NULL, expires_at = NULL
    WHERE name = p_name AND epoch = p_epoch AND token = p_token;
  RETURN FOUND;
END $$;

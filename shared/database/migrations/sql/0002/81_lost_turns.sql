-- Turns that were given up with their workers, for whoever asks what is parked: few, and found without the history.

CREATE INDEX turns_lost ON turns (ended_at) WHERE status = 'ended' AND code = 'turn.lease';

-- One claim in eight begins with the oldest due row of any owner: it is found without looking at unserved revisions.
CREATE INDEX turns_oldest ON turns (pool, agent_revision, due_at, id) WHERE status = 'ready';

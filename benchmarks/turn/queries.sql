-- The plainest commits there are, in a database of their own.

-- name: create
CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, about text NOT NULL)

-- name: insert
INSERT INTO plain (about) SELECT %(about)s FROM generate_series(1, %(rows)s::int)

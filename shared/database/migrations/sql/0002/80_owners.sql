-- What an owner may besides its caps and rates: the largest request body, below each route's own bound.

ALTER TABLE owners ADD COLUMN body_max_bytes int;

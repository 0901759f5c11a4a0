"""A finite, leased pass over the committed records of one session: extract, save, apply, advance."""

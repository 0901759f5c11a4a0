"""Group commit: what several sessions write at about the same time shares one statement and one commit (core 6).

Reading order: :mod:`~shared.database.gatherer` (who leaves when, and with whom), then
:mod:`~shared.turns.grouping.postgres` (the statement, and what its failure means to each member).
"""

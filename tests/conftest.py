"""Fixtures that every folder of tests may use, and how property tests search."""

from hypothesis import settings

from tests.support.servers import database_url, own_servers, redis_url, servers, shared_servers

__all__ = ["database_url", "own_servers", "redis_url", "servers", "shared_servers"]

# No deadline: a busy machine is no failure. So many examples that the unit folder stays quick; a test that needs more of
# them says so itself.
settings.register_profile("turnkeeper", deadline=None, max_examples=40)
settings.load_profile("turnkeeper")

"""Fixtures that every folder of tests may use."""

from tests.support.servers import database_url, own_servers, redis_url, servers

__all__ = ["database_url", "own_servers", "redis_url", "servers"]

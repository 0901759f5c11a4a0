"""Alembic's entry: runs the migrations on the connection that ``shared.database.migrate`` holds the lock with."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()

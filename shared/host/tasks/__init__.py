"""Background tasks for a host: what starts them, runs them in the host's own process, and answers what they came to.

Reading order: :mod:`~shared.host.tasks.port` (``Tasks``, ``TaskRunner``, ``TaskExecutor``), then
:mod:`~shared.host.tasks.deadlines` (how long work may take), :mod:`~shared.host.tasks.runners`,
:mod:`~shared.host.tasks.work` (one task from its claim to its parent's reaction) and :mod:`~shared.host.tasks.tasks`.
"""

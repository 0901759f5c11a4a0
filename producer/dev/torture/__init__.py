"""``turnkeeper torture``: the system on servers of its own, under load, while every part of it is killed, cut and restarted.

::

    plan (seed) ──▶ faults ──▶ crew (processes, links) ──▶ producers, workers, Postgres, broker
    load (clients) ──────────────── HTTP ───────────────▶ producers          │ effects.log (outside)
    watch (samples, stale writes) ◀── Postgres ──────────────────────────────┘
                        run: load and faults ▸ restore ▸ drain ▸ stop ▸ judge ▸ report

1. What is judged is what was acknowledged (the clients' notes), what is stored (Postgres), and what happened outside (the
   tools' journal); never what a process says of itself.
2. The plan of faults is a function of the seed. How the machine interleaves them is not.
3. A fault never takes the last turn worker, upkeep worker or producer that is fit: what is measured is repair, not absence.

Reading order: ``schedule`` (kinds and plan), ``app`` (the host's side), ``links``, ``crew``, ``faults``, ``load``, ``watch``, ``judge``,
``report``, ``run``.
"""

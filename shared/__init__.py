"""What producer, workers and memory pipeline share; imports none of them.

From the ground up: ``domain`` < ``settings``, ``telemetry`` < ``database`` < ``leases`` < ``sessions`` < ``turns`` <
``feed``, ``wakes`` < ``models`` < ``agents`` < ``conformance``. Import contracts in ``pyproject.toml`` hold the order.
"""

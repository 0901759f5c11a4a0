"""Telemetry: what a process says about itself. For now its logs."""

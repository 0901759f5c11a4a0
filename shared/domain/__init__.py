"""Ids, errors, canonical JSON, bounds and failpoints: values and rules without any I/O."""

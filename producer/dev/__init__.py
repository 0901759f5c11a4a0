"""The embedded run and the offline model: what a newcomer and the tests start. Workers are started as processes."""

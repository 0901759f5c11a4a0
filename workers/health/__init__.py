"""Whether a worker process is fit: how far its loop lags, and whether what it is owed goes on."""

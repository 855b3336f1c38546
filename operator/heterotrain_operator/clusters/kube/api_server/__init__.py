"""The way to the API server: who we are, one request, what can be asked and written, and who may write at all."""

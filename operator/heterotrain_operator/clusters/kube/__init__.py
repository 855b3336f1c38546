"""The Kubernetes backend: objects are built, pods observed, decisions carried out, and status is reported."""

"""A Kubernetes cluster as a job's world: objects built, pods observed, decisions carried out."""

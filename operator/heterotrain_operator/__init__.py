"""The control plane of HeteroTrain: decides batch sizes, starts workers, explains what it does."""

"""How a worker reaches its peers: an authenticated channel to each, and boards through which groups are made."""

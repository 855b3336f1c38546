"""All that only machines with version 1 of cgroups need; to be removed as a whole once there are none."""

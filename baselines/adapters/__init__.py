"""One module per contender, all with the same four calls; `baselines.driver` says which."""

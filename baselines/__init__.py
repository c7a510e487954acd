"""The opponents: every contender that can replay a workload, and the one driver that times all of them alike."""

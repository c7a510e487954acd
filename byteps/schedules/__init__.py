"""The synchronisation schemes of the literature, each a pure function to a `byteps.schedule.Schedule`."""

"""Experiments as data: what to run (`cases/`), how it ran (records), and what follows from it (figures, verdicts)."""

"""Horovod's module of this name, for whoever imports from it."""

raise ImportError(
    "byteps.torch.elastic is not supported: start a job anew from a checkpoint when a worker is lost (docs/training.md)"
)
